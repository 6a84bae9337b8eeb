"""Pages of notebooks, jobs and arrays: lists, the queue, one workload, why it waits."""
