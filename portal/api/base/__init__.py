"""Shared by all endpoints: authentication, throttling, errors, pagination, look-up of visible rows."""
