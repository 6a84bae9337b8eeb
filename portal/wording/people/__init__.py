"""Write sentences about accounts and audit records."""
