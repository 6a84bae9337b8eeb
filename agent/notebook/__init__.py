"""Runs JupyterLab in the sandbox and measures the activity of notebooks from outside."""
