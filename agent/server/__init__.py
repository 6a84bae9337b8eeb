"""Communicates with the server: joining, the sync connection, reports, sample spool, workspace streams."""
