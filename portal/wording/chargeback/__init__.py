"""Define texts of the chargeback page and of the pages of adjustments."""
