"""Aggregate samples into rollups per minute, hour and day, and mark the buckets that are due."""
