"""Define alerts and the rules of pools for them."""
