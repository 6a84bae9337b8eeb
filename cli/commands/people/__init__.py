"""Define the commands about people, their accounts, tokens and security."""
