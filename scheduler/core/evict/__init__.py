"""Choose the running workloads to evict so that a waiting workload can start."""
