"""Aggregate samples into rollups per minute, hour and day; buckets that need it are marked as due."""
