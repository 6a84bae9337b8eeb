"""Render the form that requests GPUs (notebook, job, reservation) and its preview."""
