"""Reads the GPUs of the host and changes them: NVML or a simulation, MIG geometry, health events, stray processes, handover between tenants."""
