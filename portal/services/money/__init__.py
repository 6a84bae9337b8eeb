"""Change prices, budgets and cost centres. Close the months of the statements."""
