"""Render states, icons and team marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.wording.pages import home_pages

# States, each with (word, shape in icons.svg, colour class). The shape and the word identify the state
# without the colour.
STATE_DISPLAY: dict[str, tuple[str, str, str]] = {
    # workloads
    "queued": ("Queued", "queued", "queued"),
    "placed": ("Placed", "starting", "starting"),
    "starting": ("Starting", "starting", "starting"),
    "running": ("Running", "running", "running"),
    "notice": ("Asked to stop", "ending", "ending"),
    "stopping": ("Stopping", "ending", "ending"),
    "ended": ("Ended", "ended", "ended"),
    "idle": ("Idle", "idle", "idle"),
    "waits_to_resume": ("Waits to resume", "preempted", "queued"),
    "failed": ("Failed", "failed", "failed"),
    "cancelled": ("Cancelled", "cancelled", "ended"),
    "stopped": ("Stopped", "cancelled", "ended"),
    # reservations
    "confirmed": ("Confirmed", "reserved", "starting"),
    "active": ("Active", "running", "running"),
    "over": ("Over", "ended", "ended"),
    "released": ("Released", "cancelled", "ended"),
    # submissions
    "waiting": ("Waits for approval", "pending", "queued"),
    "pending": ("Waits for approval", "pending", "queued"),
    "approved": ("Approved", "ended", "running"),
    "approved_changed": ("Approved, changed", "ended", "running"),
    "declined": ("Declined", "failed", "failed"),
    "withdrawn": ("Withdrawn", "cancelled", "ended"),
    "expired": ("Expired", "cancelled", "failed"),
    # hosts and GPUs
    "joining": ("Joining", "pending", "queued"),
    "alive": ("Alive", "running", "running"),
    "suspect": ("One renewal late", "lost", "idle"),
    "silent": ("Silent", "lost", "failed"),
    "in_service": ("In service", "running", "running"),
    "ready": ("Ready", "running", "running"),
    "revoked": ("Credential revoked", "lost", "failed"),
    "removed": ("Removed", "ended", "ended"),
    "cordoned": ("Cordoned", "blocked", "idle"),
    "draining": ("Draining", "ending", "ending"),
    "maintenance": ("Maintenance", "maintenance", "idle"),
    "well": ("Well", "running", "running"),
    "quarantined": ("Quarantined", "blocked", "failed"),
    "diagnosing": ("Diagnosing", "starting", "starting"),
    "out": ("Out of service", "cancelled", "failed"),
    "reshaping": ("Changing geometry", "maintenance", "idle"),
    "changing": (home_pages.HOST_CHANGES_IT, "starting", "starting"),
    "done": ("Done", "ended", "running"),
    # checks of the system
    "good": ("Good", "running", "running"),
    "attention": ("Attention", "blocked", "idle"),
    "bad": ("Bad", "failed", "failed"),
    "unknown": ("Unknown", "pending", "queued"),
    # diagnostics
    "wanted": (home_pages.WAITS_FOR_HOST, "pending", "queued"),
    "passed": ("Passed", "ended", "running"),
    # billing months
    "open": ("Open", "queued", "queued"),
    "closed": ("Closed", "ended", "ended"),
}


def _svg_use(symbol: str) -> SafeString:
    return format_html('<use href="{}#{}"/>', static("icons.svg"), symbol)


def icon(name: str, label: str = "") -> SafeString:
    """Render a 16 px icon of icons.svg. Without a label, the icon is hidden from screen readers."""
    if label:
        return format_html('<svg class="icon" role="img" aria-label="{}">{}</svg>', label, _svg_use(name))
    return format_html('<svg class="icon" aria-hidden="true">{}</svg>', _svg_use(name))


def state(name: str, label: str = "", detail: str = "") -> SafeString:
    """Render a state as shape, word and colour. ``label`` replaces the word, ``detail`` follows it.

    A name that is not in STATE_DISPLAY is shown as text with a neutral shape.
    """
    name = str(name)
    word, shape, colour = STATE_DISPLAY.get(name, (name.replace("_", " ").capitalize(), "queued", "queued"))
    text = f"{label or word} {detail}".strip()
    return format_html(
        '<span class="state {}"><svg aria-hidden="true">{}</svg>{}</span>',
        colour,
        _svg_use(f"state-{shape}"),
        text,
    )


def team_mark(team: Any, url: str = "", short: bool = False) -> SafeString:
    """Render a team's colour mark and its name, or its tag if ``short``.

    ``team`` has a ``name``, a ``tag`` and a ``colour`` (1 to 8).
    """
    colour = (int(_attribute(team, "colour") or 1) - 1) % 8 + 1
    name = _attribute(team, "tag") if short else _attribute(team, "name")
    swatch = format_html(
        '<svg aria-hidden="true"><rect class="team-{}" width="8" height="12" rx="1"/></svg>', colour
    )
    if url:
        return format_html('<a class="team" href="{}">{}{}</a>', url, swatch, name)
    return format_html('<span class="team">{}{}</span>', swatch, name)


def _attribute(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)
