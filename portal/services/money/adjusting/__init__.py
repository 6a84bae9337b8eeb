"""Propose and decide credits and manual adjustments."""
