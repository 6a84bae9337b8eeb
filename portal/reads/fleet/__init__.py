"""Read hosts and GPUs: capacity, health, history, MIG geometry, volumes."""
