"""Read the address, browser, device and failed attempts of a sign-in from its request."""
