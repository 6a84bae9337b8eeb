"""Carry out the actions that people start on pages, in the API or with the CLI.

Each function checks the permission and the input. Then it writes its rows and its audit record in one
transaction. Pages, the API and the CLI only call these functions. All arguments are keyword-only. There is
one folder for each area: ``work``, ``calendar``, ``approvals``, ``fleet``, ``people``, ``money``.
"""
