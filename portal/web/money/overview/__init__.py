"""Render the figures above the table of the chargeback page."""
