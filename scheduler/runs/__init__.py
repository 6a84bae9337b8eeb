"""Attempts, their commands and logs, and gangs: what happens to a workload once it is placed."""
