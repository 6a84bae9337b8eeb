"""The program on GPU hosts.

Installs and runs without the server; of it the server imports only ``protocol``.
"""

AGENT_VERSION = "0.1.0"
