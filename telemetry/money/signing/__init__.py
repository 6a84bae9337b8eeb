"""Compute, sign and verify the digests of closed months."""
