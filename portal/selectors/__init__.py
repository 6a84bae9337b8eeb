"""What pages read: one module per area. Every query starts from ``portal.policy``, so what may not be seen is not found;
each page asks a fixed number of queries, however many rows it shows."""
