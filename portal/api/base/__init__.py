"""What every endpoint shares: authentication, throttling, errors, pages of lists, look-up of visible rows."""
