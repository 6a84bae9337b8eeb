"""Sentences above the table of the chargeback page."""
