"""Answer questions about the number of GPUs: the forecast of demand, and the size of a pool."""
