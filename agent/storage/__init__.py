"""Measures homes, and changes the owner of folders or removes them without trusting their content."""
