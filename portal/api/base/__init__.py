"""Share code between all endpoints: authentication, throttling, errors, pagination, look-up of rows."""
