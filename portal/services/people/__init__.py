"""Change teams, projects, accounts, memberships, tokens and preferences."""
