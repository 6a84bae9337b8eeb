"""Receive what agents send: sample batches through the Redis stream into partitioned tables, hardware events and stray processes."""
