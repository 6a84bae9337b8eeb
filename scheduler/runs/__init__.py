"""Manage the runs of workloads: attempts, commands to hosts, gangs (jobs on several hosts), retries, logs."""
