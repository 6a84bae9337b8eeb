"""Gives the agent access to its machine.

Contains the state folder, processes, GPU locks, threads, addresses, clocks and shutdown.
"""
