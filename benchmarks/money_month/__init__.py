"""Generate a month of a large organisation, charge it, close it, and measure each step."""
