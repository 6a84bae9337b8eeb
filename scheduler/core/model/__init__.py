"""Hold the planner's input, output and working state: the snapshot's rows, the plan's rows, one pool's hardware, running work, queue and quota ledger."""
