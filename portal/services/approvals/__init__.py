"""Submit, approve, decline and withdraw requests that need approval."""
