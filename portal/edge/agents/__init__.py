"""Serve the connections of agents.

An agent joins, syncs its state, and sends samples and logs. It also opens streams, which carry workspace
traffic.
"""
