"""Provide the reads and previews that pages, the API and telemetry share. Nothing here changes a row."""
