"""Explain why a workload waits: the reason, its position in the queue, its expected start, and held units."""
