"""One planning cycle, in order: lead, take a snapshot, plan, check, apply, record."""
