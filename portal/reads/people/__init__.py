"""Read teams, people, tokens, notices, audit records, and the dashboard of operators and finance."""
