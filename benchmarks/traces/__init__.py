"""Replay recorded cluster traces, and simulate other queue orders and placement policies for comparison."""
