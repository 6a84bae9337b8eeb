"""Define the commands about money."""
