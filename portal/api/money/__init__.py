"""Endpoints of use, charges, statements, prices and budgets."""
