"""Find events that users should know about, and write one notification per event and user."""
