"""Load the limits of readings, and count the readings that could not be stored as they arrived."""
