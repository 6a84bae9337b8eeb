"""Implement the endpoints of use, charges, statements, prices and budgets."""
