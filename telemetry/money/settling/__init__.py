"""Compare charges with facts that became known after them."""
