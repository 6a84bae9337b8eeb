"""Pages of hosts, GPUs, pools, data volumes and the rules for hardware events."""
