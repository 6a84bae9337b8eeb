"""Short-lived keys and channels in Redis that the edge and the portal share.

The loss of a key or message only delays a page or a check; the database is authoritative.
"""
