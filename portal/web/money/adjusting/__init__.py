"""Render the pages of credits and manual adjustments."""
