"""Shared parts of the edge: database threads, Redis subscription, metrics, guard against slow bodies."""
