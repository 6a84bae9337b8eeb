"""Render the pages of utilisation, chargeback, prices and budgets."""
