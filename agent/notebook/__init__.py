"""Runs JupyterLab in the sandbox, and probes from outside what a notebook does."""
