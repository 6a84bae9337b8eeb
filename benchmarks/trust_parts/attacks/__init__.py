"""Attack a running site. Each attack is one function with one result."""
