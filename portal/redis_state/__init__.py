"""Short-lived keys and channels in Redis that the edge and the portal share.

Losing one only delays a page or a check; the database is authoritative.
"""
