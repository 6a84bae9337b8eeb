"""Replay recorded cluster traces, and provide queue orders for comparison."""
