"""Provide the faults that `./run bench faults` injects, and the ledger of jobs that checks the invariants."""
