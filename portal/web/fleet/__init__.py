"""Render the pages of hosts, GPUs, pools, data volumes and health rules."""
