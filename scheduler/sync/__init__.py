"""What hosts report and what they are told."""
