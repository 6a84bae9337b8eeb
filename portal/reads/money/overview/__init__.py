"""Read the figures above the table of the chargeback page, for the page, the API and the CLI."""
