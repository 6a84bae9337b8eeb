"""Plan one pool in pure functions: no Django, no clock, no I/O, no randomness.

Begin reading at ``planner.py``.
"""
