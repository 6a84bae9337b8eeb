"""Define the commands about people and their accounts."""
