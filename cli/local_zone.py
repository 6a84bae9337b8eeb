"""Find the name of this machine's time zone."""

from __future__ import annotations

import os


def local_zone_name() -> str:
    """Return the name of this machine's time zone in the time zone database; UTC if it is unknown."""
    configured = os.environ.get("TZ", "").lstrip(":")
    if configured:
        return configured
    path = os.path.realpath("/etc/localtime")
    _, found, name = path.partition("/zoneinfo/")
    return name if found else "UTC"
