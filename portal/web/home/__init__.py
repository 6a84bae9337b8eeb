"""The first page and the search over everything."""
