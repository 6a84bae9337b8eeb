"""Keep reservations: the timeline of promised units, binding at the start, checks of requested windows and extensions."""
