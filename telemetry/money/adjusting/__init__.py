"""Propose and decide credits and manual adjustments, and write their statement lines."""
