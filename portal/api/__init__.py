"""Implement version 1 of the HTTP API. Views call services and reads; serializers check and describe JSON."""
