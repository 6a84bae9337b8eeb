"""Change prices, budgets and cost centres; close months."""
