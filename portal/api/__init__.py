"""The HTTP API of version 1. Views call services and reads; serializers check and describe the JSON."""
