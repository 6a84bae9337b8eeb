"""Locks, leases, leader election and the clock check that every writer goes through."""
