"""Keep the promises to reservations.

The timeline of promised units, binding at the start, and checks of requested windows and extensions.
"""
