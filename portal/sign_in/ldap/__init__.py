"""Read people and groups in an LDAP directory, and check their passwords there."""
