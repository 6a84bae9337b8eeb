"""Build the sentences about the number of GPUs and about smaller requests."""
