"""Read the bookings that the calendar shows, and submissions with their approvals."""
