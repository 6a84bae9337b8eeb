"""Handle queued work: dependencies, queue limits, runtime predictions and recorded start estimates."""
