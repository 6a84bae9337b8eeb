"""Implement the command line and the Python client of gpupool. They need no package of the server."""

VERSION = "0.1.0"
