"""Explain a refusal: the reason, the position, the expected start and the units that are held for it."""
