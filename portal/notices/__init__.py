"""Find the events that users should know about, and write notifications.

Each user gets at most one notification about an event.
"""
