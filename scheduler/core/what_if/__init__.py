"""Answer hypothetical questions with ``plan()`` on a changed snapshot.

Previews, alternatives, comparisons, drains and simulations.
"""
