"""Pages of the calendar, reservations, approvals and quota requests."""
