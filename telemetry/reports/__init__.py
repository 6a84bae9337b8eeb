"""Make the reports of runs: from rollups while they exist, and stored for ever after the end of the run."""
