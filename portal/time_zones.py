"""Read the names of the time zone database."""

from __future__ import annotations

import functools
import zoneinfo


@functools.cache
def time_zone_names() -> frozenset[str]:
    """Return all names of the time zone database of this machine.

    The names are read once per process, because each listing opens about 600 files (5 ms).
    """
    return frozenset(zoneinfo.available_timezones())
