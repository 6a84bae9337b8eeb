"""Group notices by topic, and build the texts of messages to notice channels."""
