"""Periodic, level-triggered work that the passing of time requires."""
