"""Explain and forecast spending: its change, its expected end of a period, and unusual days."""
