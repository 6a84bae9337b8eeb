"""Render the utilisation page: where the GPU-hours went, who used them, and how long people waited."""
