"""Decide when alerts begin and end: kinds with their thresholds, and the use of GPUs by two signals."""
