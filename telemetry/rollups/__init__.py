"""Aggregate samples into rollups per minute, hour and day; due buckets are marked."""
