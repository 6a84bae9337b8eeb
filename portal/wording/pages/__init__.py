"""Messages, titles and notes of pages, by area."""
