"""Define the planner's input, output and working state.

These are the snapshot's rows, the plan's rows, and one pool's hardware, running work, queue and quota ledger.
"""
