"""The command line and Python client of gpupool. Needs only click and rich; installs without the server."""

VERSION = "0.1.0"
