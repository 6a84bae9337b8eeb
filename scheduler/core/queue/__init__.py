"""Order the waiting work of a pool: admit it to the queue, sort it, and predict its runtimes."""
