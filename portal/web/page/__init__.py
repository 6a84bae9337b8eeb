"""Code shared by all pages: access checks, the page frame, live refresh, service forms, CSV downloads."""
