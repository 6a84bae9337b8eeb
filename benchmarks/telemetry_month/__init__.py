"""Measure telemetry at the size of an organisation: ingest, rollups, rebuild, pages and metrics."""
