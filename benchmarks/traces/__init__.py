"""Replay of recorded cluster traces, and the queue orders to compare with."""
