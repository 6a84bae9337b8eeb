"""Implement the endpoints of notebooks, jobs, arrays and the queue."""
