"""Find the currency of a month, and the factors on the price of work."""
