"""Communicates with the server.

Contains the join, the sync connection, the reports, the spool of samples, and the streams of workspaces.
"""
