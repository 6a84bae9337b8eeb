"""Define state machines, isolation levels, nudges and the change feed.

This package does not import ``scheduler.models``.
"""
