"""Django's PostgreSQL backend, with a pool of connections that is back at once when the database is."""
