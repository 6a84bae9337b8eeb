"""ASGI and Django middleware, probes and error responses of the web process."""
