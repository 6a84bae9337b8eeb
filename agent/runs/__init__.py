"""Starts, observes and stops the runs of this host according to the desired state."""
