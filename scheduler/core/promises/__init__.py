"""Keep the promises that are made to reservations.

The package computes for which times each unit is promised. It gives reservations their units at their start.
It also checks whether a requested reservation or an extension fits.
"""
