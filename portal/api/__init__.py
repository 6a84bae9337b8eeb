"""Implement version 1 of the HTTP API.

Views call ``portal.services`` and ``portal.reads``. Serializers check and describe JSON.
"""
