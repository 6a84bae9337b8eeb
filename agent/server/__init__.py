"""Talks to the server: joining, the sync connection, reports, the sample spool, workspace streams."""
