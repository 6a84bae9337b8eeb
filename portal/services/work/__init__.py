"""Launch, change, preview, open and cancel notebooks, jobs and arrays."""
