"""Endpoints about the installation itself: its health, its database, its recordings and its retention."""
