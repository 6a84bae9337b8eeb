"""Enter, change and remove the dcgm-exporter of a host."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import SplitResult, urlsplit, urlunsplit

from scheduler.models import Host
from telemetry.dcgm.http_fetch import is_forbidden_address
from telemetry.models import DcgmTarget

MAX_URL_LENGTH = 300
METRICS_PATH = "/metrics"
# Everything that a scrape of an earlier URL has found.
_NO_RESULT = {
    "scraped_at": None,
    "succeeded_at": None,
    "problem": "",
    "fields_read": None,
    "units_read": None,
    "unreadable_lines": None,
    "refused_gpus": None,
}


def normalised_url(text: str) -> str | None:
    """Return the URL that is scraped for ``text``; None if it is not allowed.

    Allowed are http and https without credentials and fragment, with a host that is not link-local, multicast
    or unspecified. A URL without a path gets METRICS_PATH.
    """
    text = text.strip()
    parts = _split_url(text)
    if parts is None or not _is_allowed(parts):
        return None
    path = parts.path if parts.path.strip("/") else METRICS_PATH
    url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    return url if len(url) <= MAX_URL_LENGTH else None


def _split_url(text: str) -> SplitResult | None:
    """Return the parts of a URL; None if it is malformed."""
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        return None
    try:
        parts = urlsplit(text)
        return None if parts.port == 0 else parts
    except ValueError:
        return None


def _is_allowed(parts: SplitResult) -> bool:
    if parts.scheme not in ("http", "https") or "@" in parts.netloc or parts.fragment:
        return False
    return bool(parts.hostname) and not is_forbidden_address(parts.hostname or "")


def set_target(host: Host, url: str, now: datetime) -> DcgmTarget:
    """Enter or change the dcgm-exporter of a host. It is scraped at once."""
    values = {"url": url, "due_at": now, **_NO_RESULT}
    target, _ = DcgmTarget.objects.update_or_create(
        host=host, defaults=values, create_defaults={**values, "created_at": now}
    )
    return target


def remove_target(host: Host) -> bool:
    """Remove the dcgm-exporter of a host. Return False if there is none. Stored values stay."""
    return DcgmTarget.objects.filter(host=host).delete()[0] > 0
