"""Implement the endpoints of the user's account, teams, tokens, notifications and the audit record."""
