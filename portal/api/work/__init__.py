"""Endpoints of notebooks, jobs, arrays and the queue."""
