"""Measures homes and disk usage, changes the owner of folders and removes folders.

No code in this package trusts the content of these folders.
"""
