"""Holds the files that the agent offers to every workload: the checkpoint command and the helper module."""
