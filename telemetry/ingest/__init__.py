"""Receive sample batches (through a Redis stream), hardware events and stray processes from agents."""
