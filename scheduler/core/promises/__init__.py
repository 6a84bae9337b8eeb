"""Keep the promises to reservations.

The package has the timeline of promised units, the binding of units at the start, and the checks of requested
windows and extensions.
"""
