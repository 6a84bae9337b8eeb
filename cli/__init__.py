"""Command line and Python client of gpupool. It needs only click and rich, and not the server."""

VERSION = "0.1.0"
