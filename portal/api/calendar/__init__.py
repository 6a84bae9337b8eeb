"""Implement the endpoints of reservations, approvals, quotas and explanations of waits."""
