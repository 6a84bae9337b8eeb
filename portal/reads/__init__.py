"""Queries behind pages, API and services. Every query starts from ``portal.policy``; the number of queries does not depend on the number of rows."""
