"""Draw the calendar as SVG rectangles, without scripts.

Horizontal positions are in per cent of the window, heights in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.reads.calendar.bookings import CalendarBooking, CalendarHostRow, CalendarModelGroup
from portal.web.components.quantities import gpu_model, short_duration
from scheduler.core.model.slots import WHOLE_GPU_PROFILE

PROMISE_HEIGHT, MODEL_HEIGHT, FOLD_HEIGHT = 32, 40, 28
PIXELS_PER_PROMISED_GPU = 4
# (maximum number of hosts, row height in pixels). The rows of few hosts are high enough for the label of a
# booking of one GPU. Each height has a CSS class.
HOST_HEIGHTS = ((8, 80), (24, 48), (10_000, 32))
MAX_HOST_ROWS = 12  # number of host rows of one model; other hosts share one folded row
MIN_LABEL_WIDTH = 0.035  # share of the width; a narrower booking gets no label


@dataclass(frozen=True)
class TimelineZoom:
    """A zoom level: the length of the window and the spacing of its grid."""

    name: str
    label: str
    days: int
    hours: int  # length of the window if days is 0
    step: timedelta  # length of the period that one bar in a folded row shows
    snap_minutes: int  # a window drawn with the pointer is rounded to multiples of this


ZOOMS = {
    "hour": TimelineZoom("hour", "Hour", 0, 6, timedelta(minutes=15), 5),
    "day": TimelineZoom("day", "Day", 1, 24, timedelta(hours=1), 15),
    "week": TimelineZoom("week", "Week", 7, 0, timedelta(hours=6), 60),
    "month": TimelineZoom("month", "Month", 28, 0, timedelta(days=1), 180),
}


@dataclass
class TimelineWindow:
    """The period that the calendar shows at a zoom level. It converts times to horizontal positions."""

    zoom: TimelineZoom
    start: datetime
    end: datetime
    now: datetime
    lines: list[str] = field(default_factory=list)

    @property
    def span(self) -> timedelta:
        return self.end - self.start

    def share(self, moment: datetime) -> float:
        """Return the position of a time in the window, from 0 to 1."""
        return min(1.0, max(0.0, (moment - self.start) / self.span))

    @property
    def now_x(self) -> str | None:
        """Return the position of ``now`` in per cent, or None if it is outside the window."""
        return f"{self.share(self.now) * 100:.3f}" if self.start <= self.now < self.end else None


def timeline_window(zoom: TimelineZoom, at: datetime, now: datetime) -> TimelineWindow:
    """Return the window of a zoom level that contains ``at``.

    At the zoom level "hour", the window starts one hour before the hour of ``at``. At the other levels, it
    starts at midnight. "day" starts on the day of ``at``, "week" on the day before, and "month" on the Monday
    of the same week.
    """
    local = timezone.localtime(at)
    if zoom.name == "hour":
        first = local.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
        window = TimelineWindow(zoom, first, first + timedelta(hours=zoom.hours), now)
    else:
        back = {"day": 0, "week": 1, "month": local.weekday()}[zoom.name]
        first = _midnight(local - timedelta(days=back))
        window = TimelineWindow(zoom, first, _midnight(first + timedelta(days=zoom.days)), now)
    window.lines = [f"{window.share(line) * 100:.3f}" for line in _grid_lines(window)][1:]
    return window


def _midnight(moment: datetime) -> datetime:
    """Return local midnight of the day of ``moment``. It is right even if the clock changes on that day."""
    return moment.replace(
        hour=0, minute=0, second=0, microsecond=0, tzinfo=timezone.get_current_timezone(), fold=0
    )


def _grid_lines(window: TimelineWindow) -> list[datetime]:
    step = (
        timedelta(hours=1)
        if window.zoom.name == "hour"
        else timedelta(hours=6)
        if window.zoom.name == "day"
        else timedelta(days=1)
    )
    lines, at = [], window.start
    while at < window.end:
        lines.append(at)
        at += step
    return lines


def time_axis(window: TimelineWindow) -> list[dict[str, Any]]:
    """Return the labels above the columns, in two lines: days above hours."""
    words: list[dict[str, Any]] = []
    today = timezone.localtime(window.now).date()
    if window.zoom.name in ("hour", "day"):
        day = timezone.localtime(window.start)
        words.append(
            {
                "x": "0.000",
                "y": 14,
                "dx": 6,
                "text": f"{day:%A} {day.day} {day:%B}",
                "kind": "v" if day.date() == today else "l",
            }
        )
        step = timedelta(hours=1) if window.zoom.name == "hour" else timedelta(hours=3)
        at = window.start + step
        while at < window.end:
            words.append(
                {
                    "x": f"{window.share(at) * 100:.3f}",
                    "y": 30,
                    "dx": 0,
                    "text": f"{timezone.localtime(at):%H:%M}",
                    "kind": "anchor-middle",
                }
            )
            at += step
        return words
    at = window.start
    while at < window.end:
        local = timezone.localtime(at + timedelta(hours=3))
        kind = "v" if local.date() == today else "l"
        text = f"{local:%a} {local.day} {local:%b}" if window.zoom.name == "week" else f"{local.day}"
        if window.zoom.name == "month" and local.weekday() == 0:
            text = f"{local.day} {local:%b}"
        words.append(
            {
                "x": f"{window.share(at) * 100:.3f}",
                "y": 14,
                "dx": 6 if window.zoom.name == "week" else 3,
                "text": text,
                "kind": kind,
            }
        )
        if window.zoom.name == "week":
            for hour in (6, 12, 18):
                words.append(
                    {
                        "x": f"{window.share(at + timedelta(hours=hour)) * 100:.3f}",
                        "y": 30,
                        "dx": 0,
                        "text": hour,
                        "kind": "anchor-middle",
                    }
                )
        at += timedelta(days=1)
    return words


def timeline_rows(
    groups: list[CalendarModelGroup], window: TimelineWindow, opened: set[str], address: Any
) -> list[dict[str, Any]]:
    """Return all rows of the calendar, from top to bottom.

    ``opened`` contains the keys of unfolded models. ``address(key)`` returns the URL that folds or unfolds a
    model.
    """
    drawn: list[dict[str, Any]] = []
    pools = {group.pool.pk for group in groups}
    in_view = sum(min(len(group.hosts), MAX_HOST_ROWS) for group in groups if group.key in opened)
    height = next(pixels for most, pixels in HOST_HEIGHTS if in_view <= most)
    for group in groups:
        is_open = group.key in opened
        drawn.append(_model_row(group, window, is_open, address(group.key), len(pools) > 1))
        if not is_open:
            continue
        drawn += _reservation_rows(group, window)
        whole = f"{group.key}|all"
        shown = (
            group.hosts
            if whole in opened or len(group.hosts) <= MAX_HOST_ROWS + 1
            else group.hosts[:MAX_HOST_ROWS]
        )
        drawn += [_host_row(group, host, window, height) for host in shown]
        rest = group.hosts[len(shown) :]
        if rest:
            drawn.append(_folded_row(rest, window, address(whole)))
    return drawn


def _model_row(
    group: CalendarModelGroup, window: TimelineWindow, is_open: bool, url: str, with_pool: bool
) -> dict[str, Any]:
    return {
        "kind": "model",
        "title": group.model.replace("-", " "),
        "pool": group.pool.name if with_pool else "",
        "count": group.gpus,
        "url": url,
        "is_open": is_open,
        "height": MODEL_HEIGHT,
        "target": f"{group.pool.slug}|{group.model}|",
        "most": group.gpus,
        "totals": _usage_bars(group.bookings, group.gpus, window, MODEL_HEIGHT - 1, 5),
        "top": 5,
    }


def _folded_row(hosts: list[CalendarHostRow], window: TimelineWindow, url: str) -> dict[str, Any]:
    gpus = sum(host.gpus for host in hosts)
    bookings = [booking for host in hosts for booking in host.bookings]
    title = hosts[0].name if len(hosts) == 1 else f"{hosts[0].name} to {hosts[-1].name}"
    return {
        "kind": "fold",
        "title": title,
        "count": gpus,
        "url": url,
        "height": FOLD_HEIGHT,
        "totals": _usage_bars(bookings, gpus, window, FOLD_HEIGHT - 1, 5),
        "top": 5,
    }


def _usage_bars(
    bookings: list[CalendarBooking], gpus: int, window: TimelineWindow, base: int, top: int
) -> list[dict[str, Any]]:
    """Return the bars that show the GPUs in use over time, at most two for each step of the zoom level.

    One bar is the mean number of held GPUs in the step, the other the mean number of reserved GPUs.
    """
    steps = max(1, round(window.span / window.zoom.step))
    held, promised = [0.0] * steps, [0.0] * steps
    for booking in bookings:
        if booking.state == "pending":
            continue
        first, last = window.share(booking.start) * steps, window.share(booking.end) * steps
        for step in range(int(first), min(steps, int(last) + 1)):
            part = max(0.0, min(last, step + 1) - max(first, step)) * booking.gpus
            future = (
                booking.state == "reserved"
                or window.start + (step + 0.5) * (window.span / steps) > window.now
            )
            (promised if future else held)[step] += part
    drawn = []
    scale = (base - top) / max(1, gpus)
    for step in range(steps):
        for kind, amount in (("total-running", held[step]), ("total-reserved", promised[step])):
            height = round(min(amount, gpus) * scale, 1)
            if height >= 0.5:
                x = f"{step * 100 / steps:.3f}"
                drawn.append(
                    {
                        "kind": kind,
                        "x": x,
                        "width": f"{100 / steps + 0.01:.3f}",
                        "y": round(base - height, 1),
                        "height": height,
                    }
                )
    return drawn


def _reservation_rows(group: CalendarModelGroup, window: TimelineWindow) -> list[dict[str, Any]]:
    """Return the rows of bookings that have no particular GPUs yet.

    Bookings in the same row do not overlap in time.
    """
    if not group.promises:
        return []
    lanes: list[tuple[list[CalendarBooking], int]] = []
    for booking in group.promises:
        for bookings, _ in lanes:
            if all(other.end <= booking.start or other.start >= booking.end for other in bookings):
                bookings.append(booking)
                break
        else:
            lanes.append(([booking], 0))
    return [
        {
            "kind": "promise",
            "title": "Promised" if place == 0 else "",
            "height": PROMISE_HEIGHT,
            "bookings": [
                _booking_rectangle(
                    b, window, 0.5, min(PROMISE_HEIGHT - 1, max(14, b.gpus * PIXELS_PER_PROMISED_GPU - 1))
                )
                for b in bookings
            ],
            "target": f"{group.pool.slug}|{group.model}|",
            "most": group.gpus,
        }
        for place, (bookings, _) in enumerate(lanes)
    ]


def _host_row(
    group: CalendarModelGroup, host: CalendarHostRow, window: TimelineWindow, height: int
) -> dict[str, Any]:
    """Return the row of a host.

    Bookings at the same time are stacked. The height of a booking is proportional to its number of GPUs.
    """
    per_gpu = height / max(1, host.gpus)
    placed: list[tuple[CalendarBooking, float]] = []
    for booking in host.bookings:
        taken = [
            (y, y + other.gpus * per_gpu)
            for other, y in placed
            if other.start < booking.end and other.end > booking.start
        ]
        placed.append((booking, _first_free_offset(taken, booking.gpus * per_gpu, height)))
    return {
        "kind": "host",
        "title": host.name,
        "height": height,
        "gpus": host.gpus,
        "bookings": [
            _booking_rectangle(b, window, y + 0.5, max(2.0, b.gpus * per_gpu - 1))
            for b, y in placed
            if b.end > window.start and b.start < window.end
        ],
        "maintenance": [
            _maintenance_rectangle(start, end, reason, window) for start, end, reason in host.maintenance
        ],
        "target": f"{group.pool.slug}|{group.model}|",
        "most": host.gpus,
    }


def _first_free_offset(taken: list[tuple[float, float]], height: float, row_height: float) -> float:
    y = 0.0
    for top, bottom in sorted(taken):
        if top - y >= height - 0.01:
            return y
        y = max(y, bottom)
    return min(y, max(0.0, row_height - height))


def _booking_rectangle(
    booking: CalendarBooking, window: TimelineWindow, y: float, height: float
) -> dict[str, Any]:
    left, right = window.share(booking.start), window.share(booking.end)
    width = max(right - left, 0.002)
    words = booking.name if booking.named else booking.team.name
    return {
        "booking": booking,
        "x": f"{left * 100:.3f}",
        "width": f"{width * 100:.3f}",
        "y": round(y, 1),
        "height": round(height, 1),
        "text_y": round(height / 2 + (3 if height < 13 else 4), 1),
        "tag": booking.team.tag if height >= 8 and width > MIN_LABEL_WIDTH / 2 else "",
        "words": f"{words} · {booking_size(booking)}" if height >= 8 and width > MIN_LABEL_WIDTH else "",
        "small": height < 13,
        "title": booking_title(booking),
    }


def booking_size(booking: CalendarBooking, model: str = "") -> str:
    """Return the size of a booking as text: ``2`` or ``1 × 1g.10gb``. With ``model``: ``2 × A100 80GB``."""
    if booking.profile == WHOLE_GPU_PROFILE:
        return f"{booking.gpus:g}" + (f" × {gpu_model(model)}" if model else "")
    return f"{booking.units} × {booking.profile}" + (f" of {gpu_model(model)}" if model else "")


def booking_title(booking: CalendarBooking) -> str:
    """Describe a booking in one line, for its tooltip and for screen readers."""
    start, end = timezone.localtime(booking.start), timezone.localtime(booking.end)
    what = booking.name if booking.named else "taken"
    states = {"past": "ended", "running": "running", "reserved": "reserved", "pending": "waits for approval"}
    until = "at the latest " if booking.open_end else ""
    gpus = f"{booking.gpus:g} GPU{'s' if booking.gpus != 1 else ''}"
    size = (booking_size(booking) if booking.profile else gpus) + (
        f" on {booking.host}" if booking.host else ""
    )
    when = f"{start:%a %d %b %H:%M} to {until}{end:%a %d %b %H:%M}"
    return f"{booking.team.name}: {what}, {size}, {when}, {states[booking.state]}"


def _maintenance_rectangle(
    start: datetime, end: datetime, reason: str, window: TimelineWindow
) -> dict[str, str]:
    left, right = window.share(start), window.share(end)
    return {
        "x": f"{left * 100:.3f}",
        "width": f"{(right - left) * 100:.3f}",
        "title": f"Maintenance for {short_duration(end - start)}: {reason}",
    }
