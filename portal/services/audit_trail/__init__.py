"""Seal committed audit records in a chain of hashes, check the chain, and stream the records."""
