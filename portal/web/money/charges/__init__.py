"""Show the charges of a month: as a tree, and as a list of charge lines."""
