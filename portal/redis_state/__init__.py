"""Share short-lived keys and channels in Redis between the edge and the portal.

The loss of a key or message only delays a page or a check; the database is authoritative.
"""
