"""Define the texts of the pages of money."""
