"""Find conditions that need attention, and keep an alert for each from its begin to its end."""
