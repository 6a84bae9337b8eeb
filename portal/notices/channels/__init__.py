"""Send notices through the channels of people and teams: an outbox, and a sender for each kind of channel."""
