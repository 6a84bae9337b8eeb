"""Render the pages of identity providers and rules, and the steps of a sign-in with a provider."""
