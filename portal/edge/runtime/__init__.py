"""Provide shared parts of the edge: database threads, Redis subscription, metrics, slow body guard."""
