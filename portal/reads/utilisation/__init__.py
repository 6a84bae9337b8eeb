"""Read the answers of the utilisation page, for the page and the API."""
