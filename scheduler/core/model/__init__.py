"""Define the planner's input, output and working state.

The input is a snapshot, and the output is a plan. Both consist of rows. The working state of a pool is its
hardware, running work, queue and quota ledger (the slots that each team holds and may hold).
"""
