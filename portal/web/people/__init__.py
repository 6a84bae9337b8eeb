"""Render the pages of teams, people, the user's account, the audit trail and the organisation's settings."""
