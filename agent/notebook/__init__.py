"""Runs JupyterLab inside the sandbox of a run, and measures the activity of notebooks from outside of it."""
