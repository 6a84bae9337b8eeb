"""Extend Django's PostgreSQL backend with a connection pool that reconnects quickly."""
