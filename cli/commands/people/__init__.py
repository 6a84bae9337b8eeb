"""Define the commands about tokens, service accounts and security."""
