"""Keep the sums of charge lines per statement line and cell, and assign cents to them."""
