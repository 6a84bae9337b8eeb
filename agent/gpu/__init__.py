"""Reads and changes the GPUs of the host.

Contains the readers (NVML and a simulation), changes of the MIG geometry, health events, the search for stray
processes, and the check of a GPU between two workloads.
"""
