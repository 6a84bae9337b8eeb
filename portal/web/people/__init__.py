"""Pages of teams, people, the own account, the audit trail and the organisation's settings."""
