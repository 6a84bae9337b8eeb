"""Provide the installations, pools and clients that benchmarks start or fill with rows."""
