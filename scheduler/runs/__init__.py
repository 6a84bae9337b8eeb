"""Manage the runs of workloads: attempts, commands to hosts, gangs, retries and logs."""
