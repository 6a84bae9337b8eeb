"""Read the progress of the close of each month."""
