"""Read the data of pages, the API and services.

``portal.policy`` limits the rows to those that the viewer may see. The number of queries that a function
takes does not depend on the number of rows.
"""
