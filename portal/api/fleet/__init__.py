"""Endpoints of pools, hosts, GPUs, volumes, hardware events and recordings."""
