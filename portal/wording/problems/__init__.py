"""Define messages about invalid values, with the allowed values, and about missing permissions."""
