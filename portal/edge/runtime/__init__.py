"""Shared parts of the edge process: database threads, Redis subscription, metrics, guard against slow request bodies."""
