"""Answer hypothetical questions with ``plan()`` on a changed snapshot.

These are previews, alternatives, comparisons, drains and simulations.
"""
