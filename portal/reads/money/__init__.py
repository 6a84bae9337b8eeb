"""Read utilisation and cost of workloads, budgets, prices and statements."""
