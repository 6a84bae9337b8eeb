"""Price GPU time: rate card, charges, budgets, and monthly statements that are frozen at their close."""
