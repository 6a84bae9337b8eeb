"""Build the sentences of the utilisation page."""
