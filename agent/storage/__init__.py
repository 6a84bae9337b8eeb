"""Measures homes and disk usage, changes the owner of folders and removes folders.

The content of folders is not trusted.
"""
