"""Verbs of people: the functions behind the actions of pages, API and CLI.

Each function checks permission and input, then writes its rows and its audit record in one transaction.
Pages, the API and the CLI decide nothing themselves. All arguments are keyword-only. One folder per area:
``work``, ``calendar``, ``approvals``, ``fleet``, ``people``, ``money``.
"""
