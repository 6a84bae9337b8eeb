"""Read the figures at the top of the chargeback page: months, changes and the forecast."""
