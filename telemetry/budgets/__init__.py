"""Compare spending with budgets and forecast it."""
