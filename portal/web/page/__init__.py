"""Share code between all pages: access checks, the page frame, live refresh, service forms, CSV downloads."""
