"""Tests GPUs on request. Contains the runner in the agent, and the process that tests one GPU."""
