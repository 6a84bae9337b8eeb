"""The demo organisation, its initial work, and a simulated past made by the real engine and the real charging code."""
