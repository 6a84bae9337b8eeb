"""Change identity providers and rules, and turn the claims of a person into an account with rights."""
