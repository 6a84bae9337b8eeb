"""Provides what the agent needs of its machine.

The state folder, processes, GPU locks, threads, addresses, clocks and shutdown.
"""
