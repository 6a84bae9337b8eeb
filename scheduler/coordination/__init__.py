"""Provide locks, leases, leader election and clock correction, which every writer uses."""
