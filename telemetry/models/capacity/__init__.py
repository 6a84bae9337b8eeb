"""Define the rows about the number of GPUs that a pool needs."""
