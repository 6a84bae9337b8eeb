"""Implement the endpoints of the hardware.

The objects are pools, hosts, GPUs, volumes, hardware events and recordings of planning cycles.
"""
