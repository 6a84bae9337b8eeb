"""Every verb of a person: keyword-only, with its permission, its checks, its transaction and its audit record in one place.

Pages, API and CLI call these and decide nothing themselves. One module per area:
``workloads``, ``reservations``, ``approvals``, ``hosts``, ``people``, ``money``, ``health``.
"""
