"""Read samples, and pack the samples of past days."""
