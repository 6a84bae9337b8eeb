"""Decide the time zone of each page.

Pages use the viewer's zone. Pages about money use the organisation's zone, because people compare amounts of
the same days. So does the page of utilisation for a long period (``portal.reads.utilisation.period``).
"""

from __future__ import annotations

import zoneinfo
from dataclasses import dataclass
from urllib.parse import unquote

from django.conf import settings
from django.http import HttpRequest
from django.urls import Resolver404, resolve
from django.utils import timezone

from portal.time_zones import known_zone
from portal.web.page.organisation import current_organisation

MONEY_VIEWS = "portal.web.money."
# The period decides: see ``show_times_in``.
UTILISATION_VIEWS = "portal.web.money.utilisation."


@dataclass(frozen=True)
class PageZone:
    """The zone of a page. It is guessed if neither the user nor the browser has named the viewer's zone."""

    zone: zoneinfo.ZoneInfo
    guessed: bool = False


def zone_of_page(request: HttpRequest) -> PageZone:
    """Return the zone of the requested page.

    The viewer's zone is the first that is known: the user's setting, the browser's (cookie ``tz``), or the
    organisation's.
    """
    if _is_about_money(request.path_info):
        return PageZone(_zone_of_organisation(request))
    # Scripts write cookies percent-encoded.
    for name in (getattr(request.user, "time_zone", ""), unquote(request.COOKIES.get("tz", ""))):
        zone = known_zone(name)
        if zone is not None:
            return PageZone(zone)
    return PageZone(_zone_of_organisation(request), guessed=True)


def show_times_in(request: HttpRequest, zone: zoneinfo.ZoneInfo) -> None:
    """Use another zone for the rest of the request. The middleware restores the zone after the request."""
    request.page_zone = PageZone(zone)  # type: ignore[attr-defined]
    timezone.activate(zone)


def _is_about_money(path: str) -> bool:
    try:
        view = resolve(path).func
    except Resolver404:
        return False
    return view.__module__.startswith(MONEY_VIEWS) and not view.__module__.startswith(UTILISATION_VIEWS)


def _zone_of_organisation(request: HttpRequest) -> zoneinfo.ZoneInfo:
    organisation = current_organisation(request)
    zone = known_zone(organisation.time_zone) if organisation else None
    return zone or zoneinfo.ZoneInfo(settings.TIME_ZONE)
