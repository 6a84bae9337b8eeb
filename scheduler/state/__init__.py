"""Define state machines, isolation levels, nudges and the change feed. This package imports no models."""
