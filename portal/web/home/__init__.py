"""Render the home page (own workloads, team, free GPUs, upcoming events) and the search."""
