"""Share short-lived keys and channels in Redis between the edge and the portal.

The database is authoritative. If a key or a message is lost, a page or a check is only late.
"""
