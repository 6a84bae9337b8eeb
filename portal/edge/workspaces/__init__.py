"""Serve the traffic of workspaces.

A workspace is the web interface of a running notebook or job, on a host name of its own.
"""
