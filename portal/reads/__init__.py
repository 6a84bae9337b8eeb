"""Read the data of pages, the API and services.

Every query starts from ``portal.policy``. The number of queries does not depend on the number of rows.
"""
