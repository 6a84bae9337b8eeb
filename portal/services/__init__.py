"""Verbs of people: each function checks permission and input, then writes its rows and its audit record in
one transaction.

Pages, the API and the CLI call these functions and decide nothing themselves. All arguments are keyword-only.
One folder per area: ``work``, ``calendar``, ``approvals``, ``fleet``, ``people``, ``money``.
"""
