"""Endpoints of reservations, approvals and quotas, and those that explain why a workload waits."""
