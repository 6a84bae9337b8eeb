"""Write the filters of charges into an address."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any
from urllib.parse import quote

from telemetry.reads.chargeback import filter_text


def filter_query(month: date | None, where: Mapping[str, Any], **other: str) -> str:
    """Return the query string, without "?", that selects the charges of a month with these filters.

    ``other`` are further parameters of the page. ``month`` is None if the path of the address
    already names the month.
    """
    pairs = {} if month is None else {"month": f"{month:%Y-%m}"}
    for name, value in where.items():
        pairs[name] = filter_text(name, value)
    # A page has hundreds of addresses, and a QueryDict for each of them would take a tenth of its time.
    return "&".join(f"{name}={quote(value, safe='/,')}" for name, value in (*pairs.items(), *other.items()))
