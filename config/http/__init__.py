"""Define the ASGI and Django middleware, the probes and the error responses of the web process."""
