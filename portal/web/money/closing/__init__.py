"""Render the statements of cost centres, and the settings of billing."""
