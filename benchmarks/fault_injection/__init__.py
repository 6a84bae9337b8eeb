"""Provide the faults that `./run bench faults` injects, and the ledger that checks the invariants."""
