"""Explain a refusal: the reason, the position, the expected start, and the units held for the workload."""
