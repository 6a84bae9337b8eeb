"""Receive telemetry from agents: sample batches through a Redis stream, hardware events and stray processes."""
