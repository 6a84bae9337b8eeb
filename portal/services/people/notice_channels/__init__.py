"""Create and change the channels through which people and teams get notices."""
