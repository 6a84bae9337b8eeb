"""Pages of the calendar, of one reservation and of approvals."""
