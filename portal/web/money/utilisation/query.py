"""Define the addresses of the utilisation page with other filters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from urllib.parse import urlencode

from django.urls import reverse

from portal.reads.utilisation.period import address_time
from portal.reads.utilisation.query import UtilisationScope


@dataclass
class UtilisationQuery(UtilisationScope):
    """The filters of the utilisation page, with the addresses of the page for other filters."""

    @property
    def selects_work(self) -> bool:
        """Return True if the filters select a part of the work, and not only hardware."""
        return any(name in self.parameters for name in ("team", "project", "person", "type"))

    def address(self, **changes: str | None) -> str:
        """Return the address of the page with changed parameters. None removes a parameter."""
        return self._address(reverse("utilisation"), changes)

    def csv_address(self, chart: str) -> str:
        """Return the address of the CSV file of a chart, with the same filters."""
        return self._address(reverse("utilisation-csv", args=[chart]), {})

    def requests_address(self, size: int, **more: str) -> str:
        """Return the address of the requests of one size, with the same filters."""
        return self._address(reverse("utilisation-requests"), {"size": str(size), **more})

    def address_of_step(self, start: datetime, length: timedelta) -> str:
        """Return the address of the page for a step of a time chart."""
        start_text, end_text = _quoted_time(start), _quoted_time(start + length)
        return self._period_address.replace("PERIOD-START", start_text).replace("PERIOD-END", end_text)

    @cached_property
    def _period_address(self) -> str:
        return self.address(start="PERIOD-START", end="PERIOD-END")

    def _address(self, page: str, changes: dict[str, str | None]) -> str:
        kept = {**self.parameters, **changes}
        # "start" and "end" replace a named period, and the other way round.
        if changes.get("start"):
            kept["period"] = None
        elif changes.get("period"):
            kept.update(start=None, end=None)
        given = {name: value for name, value in kept.items() if value}
        return f"{page}?{urlencode(given)}" if given else page


def _quoted_time(at: datetime) -> str:
    """Return a time as it is in an address. A chart has hundreds of addresses."""
    return address_time(at).replace(":", "%3A")
