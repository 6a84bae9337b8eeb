"""Answer hypothetical questions with ``plan()`` on a changed snapshot.

The questions are previews, alternatives, comparisons, drains and simulations.
"""
