"""Work that waits: dependencies, queue limits, runtime predictions and recorded start estimates."""
