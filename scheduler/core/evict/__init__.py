"""Choose the running work to evict so that a waiting workload can start."""
