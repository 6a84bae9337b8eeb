"""Replay of recorded cluster traces, and queue orders for comparison."""
