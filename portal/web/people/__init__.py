"""Pages of teams, accounts, tokens, notifications, the audit record and the organisation."""
