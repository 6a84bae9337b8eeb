"""Submit, approve, decline and withdraw what needs approval."""
