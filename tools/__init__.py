"""Implement the verbs of `./run`. Standard library only: this works before the Python environment exists."""
