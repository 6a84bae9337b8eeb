"""Render the pages of the calendar, reservations, approvals and quota requests."""
