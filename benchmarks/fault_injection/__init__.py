"""Provide the faults that `./run bench faults` injects, and check invariants in a ledger that jobs write."""
