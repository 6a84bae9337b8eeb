"""Serve workspace traffic: access, proxy, activity and error pages."""
