"""Define messages, titles and notes of pages, by area."""
