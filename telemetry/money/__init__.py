"""Rate card, charges, budgets and monthly statements: price held GPU time and freeze it at the close of a month."""
