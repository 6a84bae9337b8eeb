"""Speak OpenID Connect with the identity providers: their settings, discovery, keys and ID tokens."""
