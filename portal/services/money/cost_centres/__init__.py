"""Maintain the directory of cost centres, and the splits of projects and dedicated pools."""
