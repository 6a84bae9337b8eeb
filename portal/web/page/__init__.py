"""Provide code for all pages: access checks, the page frame, live refresh, service forms, CSV downloads."""
