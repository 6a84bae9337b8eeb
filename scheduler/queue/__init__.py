"""Handle queued work: its dependencies, queue limits, runtime predictions and start estimates."""
