"""Make the sentences of the home page."""
