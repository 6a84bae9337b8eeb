"""Measures homes and disk usage, changes the owner of folders and removes folders.

Workloads have filled these folders, so the code in this package does not trust their content.
"""
