"""Holds the files that every workload finds beside its own: the checkpoint command and the helper module."""
