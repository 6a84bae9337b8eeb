"""Render the pages of cost centres."""
