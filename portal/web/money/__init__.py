"""Pages of utilisation, chargeback, prices and budgets."""
