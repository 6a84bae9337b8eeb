"""Provide the reads and previews that pages, the API and telemetry share. They change no row."""
