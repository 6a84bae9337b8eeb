"""Define texts of the page on which operators announce maintenance of the database."""

from __future__ import annotations

MAINTENANCE_BEGUN = "The maintenance has begun. Stop the database only when every edge knows of it."
MAINTENANCE_ENDED = "The maintenance is over. Work is placed again."
