"""Endpoints of reservations, approvals, quotas and explanations of waits."""
