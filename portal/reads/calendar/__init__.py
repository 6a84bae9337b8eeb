"""Read reservations over time, and submissions with their approvals."""
