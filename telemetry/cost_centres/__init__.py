"""Read which cost centres pay for a project or a dedicated pool at a date, and their names."""
