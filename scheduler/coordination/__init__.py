"""Locks, leases, leader election and clock correction. Every writer uses them."""
