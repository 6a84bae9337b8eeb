"""Read usage and money for pages and the API.

Every figure carries its coverage; unknown is None, never zero. Nothing here checks permissions: callers pass
filters that their policy made (``UsageFilters.teams``, ``UsageFilters.users``). GPU-hours count slots: a
slice of a seventh for seven hours is one GPU-hour. Shares are between 0 and 1. Money is Decimal, rounded to
cents, and the rows of one answer sum to its total exactly.
"""
