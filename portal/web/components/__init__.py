"""Implement the template tags and filters of ``{% load gpupool %}``."""
