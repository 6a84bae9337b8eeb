"""Pages of hosts, GPUs, pools, data volumes and health rules."""
