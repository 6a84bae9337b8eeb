"""Read notebooks, jobs and arrays: details, queue position, expected start, history."""
