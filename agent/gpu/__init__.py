"""Reads and changes the GPUs of the host.

Contains readers (NVML and a simulation), MIG geometry, health events, stray processes and the handover
between tenants.
"""
