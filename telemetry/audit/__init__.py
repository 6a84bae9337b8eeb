"""Prove the ledger: recompute it from the facts in SQL, and verify the digests of closed months."""
