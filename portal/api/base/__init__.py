"""Provide the code that all endpoints use: authentication, throttling, errors, pagination, row look-ups."""
