"""Implement the endpoints of pools, hosts, GPUs, volumes, hardware events and recordings."""
