"""Render the pages of notebooks, jobs and job arrays: lists, the queue, one workload, and explanations."""
