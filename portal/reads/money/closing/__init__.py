"""Read how far the close of each month is."""
