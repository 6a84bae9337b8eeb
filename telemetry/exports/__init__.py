"""Write the charges of a month as files."""
