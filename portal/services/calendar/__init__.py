"""Request, preview, change and cancel single and recurring reservations."""
