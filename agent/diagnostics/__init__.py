"""Tests GPUs on request: the runner in the agent, and the process that holds a GPU's lock and tests it."""
