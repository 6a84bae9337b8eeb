"""Reads and changes the GPUs of the host.

NVML or a simulation, MIG geometry, health events, stray processes, handover between tenants.
"""
