"""What every page is written with: filters and tags that turn plain values into words, times, figures and drawings.

Nothing here reads the clock (``now`` is an argument), queries a row, or rounds money. ``templates/styleguide.html``
shows each tag once. A value that is None is unknown and is shown as that word, never as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from django import template
from django.forms import (
    BoundField,
    CheckboxInput,
    CheckboxSelectMultiple,
    FileInput,
    RadioSelect,
    Select,
    Textarea,
)
from django.template import Context
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

register = template.Library()

UNKNOWN_TEXT = "unknown"

# State: (word, shape in icons.svg, colour class). The shape and the word tell it; the colour only helps.
STATE_DISPLAY: dict[str, tuple[str, str, str]] = {
    # a workload
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
    # a reservation
    "confirmed": ("Confirmed", "reserved", "starting"),
    "active": ("Active", "running", "running"),
    "over": ("Over", "ended", "ended"),
    "released": ("Released", "cancelled", "ended"),
    # what waits for somebody's word
    "waiting": ("Waits for approval", "pending", "queued"),
    "pending": ("Waits for approval", "pending", "queued"),
    "approved": ("Approved", "ended", "running"),
    "approved_changed": ("Approved, changed", "ended", "running"),
    "declined": ("Declined", "failed", "failed"),
    "withdrawn": ("Withdrawn", "cancelled", "ended"),
    # a host
    "joining": ("Joining", "pending", "queued"),
    "alive": ("Alive", "running", "running"),
    "suspect": ("One renewal late", "lost", "idle"),
    "silent": ("Silent", "lost", "failed"),
    "in_service": ("In service", "running", "running"),
    "ready": ("Ready", "running", "running"),
    "revoked": ("Credential revoked", "lost", "failed"),
    "cordoned": ("Cordoned", "blocked", "idle"),
    "draining": ("Draining", "ending", "ending"),
    "maintenance": ("Maintenance", "maintenance", "idle"),
    "well": ("Well", "running", "running"),
    "quarantined": ("Quarantined", "blocked", "failed"),
    "diagnosing": ("Diagnosing", "starting", "starting"),
    "out": ("Out of service", "cancelled", "failed"),
    "reshaping": ("Changing geometry", "maintenance", "idle"),
    "changing": ("Its host changes it", "starting", "starting"),
    "done": ("Done", "ended", "running"),
    # a diagnostic
    "wanted": ("Waits for the host", "pending", "queued"),
    "passed": ("Passed", "ended", "running"),
    # money
    "open": ("Open", "queued", "queued"),
    "closed": ("Closed", "ended", "ended"),
}

CURRENCY_SIGNS = {"EUR": "€", "USD": "$", "GBP": "£"}

NOTE_KINDS = {"info": "info", "ok": "check", "warn": "warning", "block": "block"}


# -- values in words ---------------------------------------------------------------------------------------------------


@register.filter
def duration(value: timedelta | int | float | Decimal | None) -> str:
    """A timedelta, or seconds, as people say it: ``40 s``, ``26 min``, ``3 h 14 min``, ``2 d 4 h``. None is unknown."""
    if value is None:
        return UNKNOWN_TEXT
    seconds = int(value.total_seconds() if isinstance(value, timedelta) else value)
    sign, seconds = ("−", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 60:
        return f"{sign}{seconds} s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 60:
        return f"{sign}{minutes} min"
    if days < 2:
        rest = minutes % 60
        return f"{sign}{hours} h" + (f" {rest:02d} min" if rest else "")
    rest = hours % 24
    return f"{sign}{days} d" + (f" {rest} h" if rest else "")


@register.filter
def money(amount: Decimal | int | None, currency: str = "") -> str:
    """An exact amount with its currency: ``€1,204.80``, ``CHF 12.00``. At least two decimals are shown and none is
    lost: rounding has been done before, by the one function that may."""
    if amount is None:
        return UNKNOWN_TEXT
    exact = Decimal(amount)
    size = abs(exact).normalize()
    exponent = size.as_tuple().exponent
    decimals = max(2, -exponent if isinstance(exponent, int) else 2)
    digits = f"{size:,.{decimals}f}"
    sign = "−" if exact < 0 else ""
    mark = CURRENCY_SIGNS.get(currency)
    if mark:
        return f"{sign}{mark}{digits}"
    return f"{sign}{currency} {digits}" if currency else f"{sign}{digits}"


@register.filter
def measured(amount: Decimal | None, measure: str) -> str:
    """An amount of a budget in its measure: ``1,204.80`` of money, ``1,205 GPU-h`` or ``38.5 GPU-h`` of GPU-hours."""
    if measure != "gpu_hours" or amount is None:
        return money(amount)
    return f"{grouped(amount, 1 if abs(amount) < 100 else 0)} GPU-h"


@register.filter
def percent(share: float | Decimal | None, decimals: int = 0) -> str:
    """A share of 1 as ``71 %``. None is unknown."""
    return UNKNOWN_TEXT if share is None else f"{float(share) * 100:.{decimals}f} %"


@register.filter
def grouped(number: float | Decimal | None, decimals: int = 0) -> str:
    """A number with thousands apart: ``380,928``. None is unknown."""
    return UNKNOWN_TEXT if number is None else f"{number:,.{decimals}f}"


@register.filter
def data_size(size: float | None) -> str:
    """Bytes as ``4.2 GB`` (powers of 1000). None is unknown."""
    if size is None:
        return UNKNOWN_TEXT
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    step = 0
    while abs(size) >= 1000 ** (step + 1) and step < len(units) - 1:
        step += 1
    amount, unit = size / 1000**step, units[step]
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


@register.filter
def gpu_model(model: str) -> str:
    """A model as people write it: ``H100-80GB`` as ``H100 80GB``."""
    return str(model).replace("-", " ")


@register.simple_tag
def gpus(count: int | None, model: str = "") -> str:
    """``2 × H100 80GB``; without a model ``2 GPUs``. No count is unknown."""
    if count is None:
        return UNKNOWN_TEXT
    if model:
        return f"{count} × {gpu_model(model)}"
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


# -- time --------------------------------------------------------------------------------------------------------------


def _time_text(local: datetime, style: str, local_now: datetime | None) -> str:
    if style == "auto":
        if local_now is None or local.year != local_now.year:
            style = "full"
        elif local.date() == local_now.date():
            style = "clock"
        else:
            style = "day"
    if style == "clock":
        return f"{local:%H:%M}"
    if style == "seconds":
        return f"{local:%H:%M:%S}"
    if style == "date":
        return f"{local.day} {local:%b %Y}"
    if style == "day":
        return f"{_day_name(local.date(), local_now)} {local:%H:%M}"
    if style == "full":
        return f"{local.day} {local:%b %Y %H:%M}"
    raise template.TemplateSyntaxError(
        f"when: style {style!r}; allowed are auto, clock, seconds, day, date, full"
    )


def _day_name(day: date, local_now: datetime | None) -> str:
    if local_now is not None:
        away = (day - local_now.date()).days
        near = {0: "today", 1: "tomorrow", -1: "yesterday"}.get(away)
        if near:
            return near
    return f"{day:%a} {day.day} {day:%b}"


def _time_element(moment: datetime, text: str, *, style: str = "", relative: bool = False) -> SafeString:
    utc = moment.astimezone(UTC)
    mark = (
        mark_safe(" data-relative") if relative else format_html(' data-style="{}"', style) if style else ""
    )
    return format_html(
        '<time datetime="{}" title="{} UTC"{}>{}</time>',
        f"{utc:%Y-%m-%dT%H:%M:%SZ}",
        f"{utc:%Y-%m-%d %H:%M:%S}",
        mark,
        text,
    )


@register.simple_tag
def when(moment: datetime | None, now: datetime | None = None, style: str = "auto") -> str:
    """A moment in the viewer's zone, with UTC on hover. Styles: ``auto`` (needs now: the clock if it is today),
    ``clock``, ``seconds``, ``day`` (``tomorrow 09:00`` or ``Mon 24 Nov 09:00``), ``date``, ``full``. None: unknown."""
    if moment is None:
        return UNKNOWN_TEXT
    local_now = None if now is None else timezone.localtime(now)
    return _time_element(moment, _time_text(timezone.localtime(moment), style, local_now), style=style)


@register.simple_tag
def window(start: datetime, end: datetime | None, now: datetime | None = None) -> SafeString:
    """A stretch of time: ``tomorrow 09:00 to 17:00``, with the day again only if it is another. Open: ``since …``."""
    local_now = None if now is None else timezone.localtime(now)
    first = timezone.localtime(start)
    opening = _time_element(start, _time_text(first, "day", local_now), style="day")
    if end is None:
        return format_html("since {}", opening)
    last = timezone.localtime(end)
    style = "clock" if last.date() == first.date() else "day"
    return format_html(
        "{} to {}", opening, _time_element(end, _time_text(last, style, local_now), style=style)
    )


def _relative_time_text(moment: datetime, now: datetime) -> str:
    seconds = int((now - moment).total_seconds())
    if -1 <= seconds <= 1:
        return "now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


@register.simple_tag
def ago(moment: datetime | None, now: datetime) -> str:
    """``4 s ago`` or ``in 3 h 14 min``, kept up to date in the browser. None is shown as unknown."""
    return (
        UNKNOWN_TEXT
        if moment is None
        else _time_element(moment, _relative_time_text(moment, now), relative=True)
    )


@register.simple_tag
def freshness(
    moment: datetime | None, now: datetime, stale_after: int = 30, word: str = "Live"
) -> SafeString:
    """How fresh what is shown is: ``Live, 4 s ago``; once older than ``stale_after`` seconds it says so, by itself."""
    if moment is None:
        return mark_safe('<span class="live stale">No news yet</span>')
    stale = (now - moment).total_seconds() > stale_after
    return format_html(
        '<span class="{}" data-stale-after="{}"><span data-live="{}" data-stale="Stale, last news">{}</span> {}</span>',
        "live stale" if stale else "live",
        stale_after,
        f"{word},",
        "Stale, last news" if stale else f"{word},",
        ago(moment, now),
    )


# -- signs and drawings ------------------------------------------------------------------------------------------------


def _svg_use(symbol: str) -> SafeString:
    return format_html('<use href="{}#{}"/>', static("icons.svg"), symbol)


@register.simple_tag
def icon(name: str, label: str = "") -> SafeString:
    """A 16 px icon of icons.svg in the text's colour. With a label it speaks, without one it is decoration."""
    if label:
        return format_html('<svg class="icon" role="img" aria-label="{}">{}</svg>', label, _svg_use(name))
    return format_html('<svg class="icon" aria-hidden="true">{}</svg>', _svg_use(name))


@register.simple_tag
def state(name: str, label: str = "", detail: str = "") -> SafeString:
    """A state: shape, word, colour. ``label`` replaces the word, ``detail`` follows it (``Idle 41 min``).
    A name that is not in STATES is shown in its own words with a neutral shape."""
    name = str(name)
    word, shape, colour = STATE_DISPLAY.get(name, (name.replace("_", " ").capitalize(), "queued", "queued"))
    text = f"{label or word} {detail}".strip()
    return format_html(
        '<span class="state {}"><svg aria-hidden="true">{}</svg>{}</span>',
        colour,
        _svg_use(f"state-{shape}"),
        text,
    )


@register.simple_tag
def team_mark(team: Any, url: str = "", short: bool = False) -> SafeString:
    """A team's swatch and its name (or its few letters). ``team`` has ``name``, ``tag`` and ``colour`` (1 to 8)."""
    colour = (int(_attribute(team, "colour") or 1) - 1) % 8 + 1
    name = _attribute(team, "tag") if short else _attribute(team, "name")
    swatch = format_html(
        '<svg aria-hidden="true"><rect class="team-{}" width="8" height="12" rx="1"/></svg>', colour
    )
    if url:
        return format_html('<a class="team" href="{}">{}{}</a>', url, swatch, name)
    return format_html('<span class="team">{}{}</span>', swatch, name)


def _attribute(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


@register.filter
def use_step(share: float | None) -> str:
    """The colour class of a utilisation (a share of 1): ``use-0`` to ``use-6``; ``gpu-unknown`` for None."""
    return "gpu-unknown" if share is None else f"use-{min(6, max(0, int(share * 7)))}"


def _polyline_parts(values: Sequence[float | None], top: float) -> Iterable[list[tuple[float, float]]]:
    """The points of each stretch that is known, in a box 200 wide and 36 high."""
    step = 200 / max(1, len(values) - 1)
    part: list[tuple[float, float]] = []
    for place, value in enumerate(values):
        if value is None:
            if part:
                yield part
            part = []
        else:
            part.append((place * step, 36 - 36 * min(1.0, max(0.0, float(value) / top))))
    if part:
        yield part


@register.simple_tag
def spark(values: Sequence[float | None], label: str, top: float = 1.0) -> SafeString:
    """A small curve of values from 0 to ``top``, evenly spaced in time; None leaves a gap. ``label`` says it."""
    lines: list[SafeString] = []
    for part in _polyline_parts(values, top):
        if len(part) == 1:
            part = [part[0], (part[0][0] + 1, part[0][1])]
        points = " ".join(f"{x:.0f},{y:.1f}" for x, y in part)
        base = f"{part[0][0]:.0f},36 {points} {part[-1][0]:.0f},36"
        lines.append(format_html('<polygon points="{}"/><polyline points="{}"/>', base, points))
    drawing = format_html_join("", "{}", ((line,) for line in lines))
    return format_html(
        '<figure><svg class="spark" viewBox="0 0 200 36" preserveAspectRatio="none" aria-hidden="true">'
        '<line x2="200" y1="36" y2="36"/>{}</svg><figcaption class="visually-hidden">{}</figcaption></figure>',
        drawing,
        label,
    )


@register.simple_tag
def bar(
    scale: float | Decimal,
    used: float | Decimal | None = 0,
    borrowed: float | Decimal = 0,
    forecast: float | Decimal = 0,
    over: float | Decimal = 0,
    mark: float | Decimal | None = None,
    label: str = "",
    size: str = "small",
) -> SafeString:
    """One line from 0 to ``scale``: used, then borrowed (hatched), then forecast (grey hatch), then over (red);
    ``mark`` is the guarantee or the budget as an ink tick. Sizes: small (8 px), medium (12), large (16).
    Without a label it is decoration for the figure in words beside it."""
    height = {"small": 8, "medium": 12, "large": 16}[size]
    whole = float(scale) or 1.0
    left = 0.0
    drawn: list[SafeString] = []
    for name, part in (("used", used), ("borrowed", borrowed), ("forecast", forecast), ("over", over)):
        width = min(100.0 - left, max(0.0, float(part or 0) / whole * 100))
        if width > 0:
            drawn.append(
                format_html(
                    '<rect class="{}" x="{}%" width="{}%" height="{}"/>',
                    name,
                    f"{left:.2f}",
                    f"{width:.2f}",
                    height,
                )
            )
            left += width
    if mark is not None:
        at = min(99.5, max(0.0, float(mark) / whole * 100))
        drawn.append(
            format_html('<rect class="tick" x="{}%" width="2" y="-2" height="{}"/>', f"{at:.2f}", height + 4)
        )
    voice = format_html('role="img" aria-label="{}"', label) if label else mark_safe('aria-hidden="true"')
    return format_html(
        '<svg class="bar {}" {}><rect class="track" width="100%" height="{}"/>{}</svg>',
        size,
        voice,
        height,
        format_html_join("", "{}", ((part,) for part in drawn)),
    )


# -- parts of a page ---------------------------------------------------------------------------------------------------


@register.inclusion_tag("components/steps.html")
def steps(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The line of steps. Each step: ``name``, ``detail`` (may be empty) and ``state``: done, now, todo or failed."""
    return {"steps": steps}


@register.inclusion_tag("components/button.html")
def button(label: str, **options: Any) -> dict[str, Any]:
    """A button or link that looks like one. Options: ``url``; ``post`` (sends a form there instead of following it),
    ``fields`` (a dict of hidden fields), ``kind`` (primary, quiet, danger, or several), ``icon``, ``small``,
    ``disabled`` (a sentence why not), ``confirm`` (what will be lost, in a sentence), ``confirm_label``, ``key`` (one
    letter), ``name`` and ``value``."""
    return {"label": label, **options}


@register.inclusion_tag("components/buttons.html")
def buttons(actions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of buttons; each action is a dict of what ``button`` takes, with its ``label``."""
    return {"actions": actions}


@register.simple_block_tag
def note(content: str, kind: str = "info", action: str = "", action_url: str = "") -> SafeString:
    """A note: ``info``, ``ok``, ``warn`` (never stops anybody) or ``block`` (its action, a link, is the fix)."""
    if kind not in NOTE_KINDS:
        raise template.TemplateSyntaxError(f"note: kind {kind!r}; allowed are {', '.join(NOTE_KINDS)}")
    link = format_html('<a class="button small" href="{}">{}</a>', action_url, action) if action else ""
    role = mark_safe(' role="alert"') if kind == "block" else ""
    return format_html(
        '<div class="note {}"{}>{}<div>{}</div>{}</div>',
        kind,
        role,
        icon(NOTE_KINDS[kind]),
        conditional_escape(content),
        link,
    )


@register.simple_block_tag(takes_context=True)
def panel(
    context: Context, content: str, title: str, hint: str = "", csv: str = "", name: str = ""
) -> SafeString:
    """A panel with a head: title, a hint or a CSV link at its right end. ``name`` is its id, for links to it."""
    mark = format_html(' id="{}"', name) if name else ""
    side = format_html("<p>{}</p>", hint) if hint else ""
    if csv:
        side = format_html('{}<a class="smallest" href="{}" download>CSV</a>', side, csv)
    return format_html(
        '<section class="panel"{}><header><h2>{}</h2>{}</header>{}</section>',
        mark,
        title,
        side,
        conditional_escape(content),
    )


@register.simple_tag(takes_context=True)
def sort_header(context: Context, label: str, field: str, numeric: bool = False) -> SafeString:
    """A table head that sorts by ``?sort=field`` (``-field`` is downwards), keeping every other part of the address."""
    query = context["request"].GET.copy()
    current = query.get("sort", "")
    query["sort"] = f"-{field}" if current == field else field
    query.pop("page", None)
    order = {field: "ascending", f"-{field}": "descending"}.get(current, "")
    return format_html(
        '<th scope="col"{}{}><a href="?{}">{}</a></th>',
        mark_safe(' class="num"') if numeric else "",
        format_html(' aria-sort="{}"', order) if order else "",
        query.urlencode(),
        label,
    )


def _widget_kind(bound: BoundField) -> str:
    widget = bound.field.widget
    if isinstance(widget, CheckboxInput):
        return "checkbox"
    if isinstance(widget, RadioSelect | CheckboxSelectMultiple):
        return "group"
    return "input"


@register.inclusion_tag("components/field.html")
def field(bound: BoundField, span: int = 12, shape: str = "", hint: str = "", **attrs: Any) -> dict[str, Any]:
    """A form field: label, control, hint; an error takes the hint's place. ``span`` is its share of a 12 column
    ``form-grid`` (3, 4, 6, 8, 12). ``shape`` for a choice of radio buttons: ``segmented`` or ``pick``. Other arguments
    become attributes of the control (``hx_post`` as ``hx-post``)."""
    hint = hint or str(bound.help_text or "")
    errors = list(bound.errors)
    described = f"{bound.auto_id}_error" if errors else f"{bound.auto_id}_helptext" if hint else ""
    given: dict[str, Any] = {name.replace("_", "-"): value for name, value in attrs.items()}
    if described:
        given["aria-describedby"] = described
    if errors:
        given["aria-invalid"] = "true"
    kind = _widget_kind(bound)
    if kind == "input":
        own = bound.field.widget.attrs.get("class", "")
        given["class"] = f"input {own}".strip()
        if isinstance(bound.field.widget, Textarea):
            given.setdefault("rows", 4)
    return {
        "field": bound,
        "kind": kind,
        "shape": shape or "check-list",
        "span": span,
        "hint": hint,
        "errors": errors,
        "control": bound.as_widget(attrs=given) if kind != "group" else "",
        "options": [(option, option.data["attrs"].get("disabled")) for option in bound.subwidgets]
        if kind == "group"
        else [],
        "described": described,
        "optional": not bound.field.required
        and not isinstance(bound.field.widget, Select | FileInput | CheckboxInput),
    }


@register.inclusion_tag("components/filter_field.html")
def filter_field(bound: BoundField) -> dict[str, Any]:
    """A field of a filter line: its label is spoken, not shown; an error stands beside it."""
    attrs: dict[str, str | bool] = {"class": "input auto", "aria-label": str(bound.label)}
    if not isinstance(bound.field.widget, Select):
        attrs["placeholder"] = str(bound.label)
    return {"control": bound.as_widget(attrs=attrs), "errors": list(bound.errors)}


@register.simple_tag
def table_cell(cell: Any, columns: Sequence[Mapping[str, Any]], index: int) -> SafeString:
    """One cell of components/table.html: a value, or a mapping with ``text``, ``url`` and ``indent`` (1 or 2)."""
    given: Mapping[str, Any] = cell if isinstance(cell, Mapping) else {"text": cell}
    text = UNKNOWN_TEXT if given["text"] is None else given["text"]
    classes = ["num"] if columns[index].get("numeric") else []
    if given.get("indent"):
        classes.append(f"indent-{given['indent']}")
    shown = (
        format_html('<a href="{}">{}</a>', given["url"], text)
        if given.get("url")
        else conditional_escape(text)
    )
    return format_html(
        "<td{}>{}</td>", format_html(' class="{}"', " ".join(classes)) if classes else "", shown
    )
