"""Provides what the agent needs of its machine: the state folder, processes, GPU locks, threads, addresses, shutdown."""
