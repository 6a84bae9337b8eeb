"""Make the addresses of the charge lines behind a figure."""

from __future__ import annotations

from datetime import date
from urllib.parse import urlencode

from django.urls import reverse


def lines_url(month: date, **filters: str) -> str:
    """Return the address of the charge lines of a month with these filters."""
    query = urlencode({"month": f"{month:%Y-%m}", **filters}, safe=",")
    return f"{reverse('charge-lines')}?{query}"
