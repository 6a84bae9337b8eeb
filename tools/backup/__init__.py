"""Back up an installation, verify a backup by restoring it, and restore an installation."""
