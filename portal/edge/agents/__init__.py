"""Serve connections of agents: join, sync, samples, logs, and streams that carry workspace traffic."""
