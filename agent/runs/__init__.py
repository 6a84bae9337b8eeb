"""Starts, observes and stops the runs of this host, as the desired state asks."""
