"""Read usage and money for pages and the API.

Every figure of measured use comes with its coverage, the part of the time with samples. An unknown value is
None, never zero. GPU-hours count slots: a seventh of a GPU for seven hours is one GPU-hour. Shares are
between 0 and 1. Money is Decimal, rounded to cents, and the rows of one answer sum to its total exactly.

This package checks no permissions. Callers pass filters that follow from the viewer's permissions
(``UsageFilters.teams``, ``UsageFilters.users``).
"""
