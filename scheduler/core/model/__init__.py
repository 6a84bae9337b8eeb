"""The planner's input, output and working state.

The snapshot's rows, the plan's rows, and one pool's hardware, running work, queue and quota ledger.
"""
