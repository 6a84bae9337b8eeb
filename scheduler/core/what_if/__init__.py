"""Answer hypothetical questions with plan() on a changed snapshot: previews, alternatives, comparisons, drains, simulations."""
