"""State machines, isolation levels, nudges and the change feed. Imports no models."""
