"""Run planning cycles: elect a leader, take a snapshot, plan, check the plan on fresh rows, apply, record."""
