"""Endpoints of oneself, teams, tokens, notifications and the audit record."""
