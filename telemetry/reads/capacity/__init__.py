"""Read what is needed to choose the number of GPUs: the demand of past days and of a quarter."""
