"""Provide the row locks, leases, leader election and clock correction that every writer uses."""
