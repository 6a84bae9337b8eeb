"""The faults that `./run bench faults` injects, and the ledger that checks what must hold."""
