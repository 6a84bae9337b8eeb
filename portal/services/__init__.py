"""Carry out the actions that people start on pages, in the API or with the CLI.

Each function checks permission and input, then writes its rows and its audit record in one transaction.
Pages, the API and the CLI decide nothing themselves. All arguments are keyword-only. The folders are the
areas: ``work``, ``calendar``, ``approvals``, ``fleet``, ``people``, ``money``.
"""
