"""Find events that people should know, and write one notification per event and person."""
