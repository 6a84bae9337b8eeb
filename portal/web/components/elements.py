"""Render parts of a page: buttons, notes, panels, table headers and form fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from django.template.loader import render_to_string
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from portal.web.components.quantities import UNKNOWN_TEXT
from portal.web.components.state_display import icon

NOTE_KINDS = {"info": "info", "ok": "check", "warn": "warning", "block": "block"}


def steps(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Render a row of steps. Each step has ``name``, ``detail`` and ``state``: done, now, todo or failed."""
    return {"steps": steps}


def button(label: str, **options: Any) -> dict[str, Any]:
    """Render a button, or a link that looks like a button.

    The options are ``url``, ``icon``, ``small``, ``name``, ``value``, and:

    - ``post``: submit a form to the URL instead of following a link.
    - ``fields``: the hidden fields of this form, as a dict.
    - ``kind``: primary, quiet or danger; several are separated by spaces.
    - ``disabled``: the reason why the button is disabled, as a sentence.
    - ``confirm``: a sentence about the loss that the user confirms first; ``confirm_label`` is its button.
    - ``key``: the letter of a keyboard shortcut.
    """
    return {"label": label, **options}


def buttons(actions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Render a row of buttons. Each action is a dict of the arguments of ``button``."""
    return {"actions": actions}


def note(content: str, kind: str = "info", action: str = "", action_url: str = "") -> SafeString:
    """Render a note with a symbol and, with ``action``, a link.

    ``kind`` is ``info``, ``ok``, ``warn`` (the user can go on) or ``block`` (the user must fix a problem).
    """
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


def panel(
    context: Context, content: str, title: str, hint: str = "", csv: str = "", name: str = ""
) -> SafeString:
    """Render a panel with a title. A hint or a CSV link is at the right. ``name`` becomes the HTML id."""
    id_attribute = format_html(' id="{}"', name) if name else ""
    side = format_html("<p>{}</p>", hint) if hint else ""
    if csv:
        side = format_html('{}<a class="smallest" href="{}" download>CSV</a>', side, csv)
    return format_html(
        '<section class="panel"{}><header><h2>{}</h2>{}</header>{}</section>',
        id_attribute,
        title,
        side,
        conditional_escape(content),
    )


def empty_state(content: str, icon: str, title: str, action: str = "", url: str = "") -> SafeString:
    """Render the text shown instead of an empty list, with a link to the action that fills it."""
    text = mark_safe(" ".join(content.split()))
    context = {"icon": icon, "title": title, "text": text, "action": action, "url": url}
    return render_to_string("components/empty.html", context)


def sort_header(context: Context, label: str, field: str, numeric: bool = False) -> SafeString:
    """Render a table header with a link that sorts the table.

    The link sets ``?sort=field``, or ``?sort=-field`` for descending order. It keeps the other parameters
    except ``page``.
    """
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


# Not split: the attributes of one control depend on each other.
def field(bound: BoundField, span: int = 12, shape: str = "", hint: str = "", **attrs: Any) -> dict[str, Any]:
    """Render a form field: label, control and hint; an error replaces the hint.

    ``span`` is the width in a 12-column ``form-grid`` (3, 4, 6, 8, 12). ``shape`` applies to radio buttons:
    ``segmented`` or ``pick``. Other arguments become attributes of the control, with hyphens:
    ``hx_post`` sets ``hx-post``.
    """
    hint = hint or str(bound.help_text or "")
    errors = list(bound.errors)
    described = f"{bound.auto_id}_error" if errors else f"{bound.auto_id}_helptext" if hint else ""
    attributes: dict[str, Any] = {name.replace("_", "-"): value for name, value in attrs.items()}
    if described:
        attributes["aria-describedby"] = described
    if errors:
        attributes["aria-invalid"] = "true"
    kind = _widget_kind(bound)
    if kind == "input":
        own = bound.field.widget.attrs.get("class", "")
        attributes["class"] = f"input {own}".strip()
        if isinstance(bound.field.widget, Textarea):
            attributes.setdefault("rows", 4)
    return {
        "field": bound,
        "kind": kind,
        "shape": shape or "check-list",
        "span": span,
        "hint": hint,
        "errors": errors,
        "control": bound.as_widget(attrs=attributes) + _shown_value(bound) if kind != "group" else "",
        "options": [(option, option.data["attrs"].get("disabled")) for option in bound.subwidgets]
        if kind == "group"
        else [],
        "described": described,
        "optional": not bound.field.required
        and not isinstance(bound.field.widget, Select | FileInput | CheckboxInput),
    }


def _shown_value(bound: BoundField) -> SafeString:
    """Return a hidden input with the shown value, for forms that submit only what has changed."""
    return bound.as_hidden(only_initial=True) if bound.field.show_hidden_initial else mark_safe("")


def filter_field(bound: BoundField) -> dict[str, Any]:
    """Render a field of a filter row. Its label is only for screen readers; an error is shown next to it."""
    attrs: dict[str, str | bool] = {"class": "input auto", "aria-label": str(bound.label)}
    if not isinstance(bound.field.widget, Select):
        attrs["placeholder"] = str(bound.label)
    return {"control": bound.as_widget(attrs=attrs), "errors": list(bound.errors)}


def table_cells(row: Sequence[Any], columns: Sequence[Mapping[str, Any]]) -> SafeString:
    """Render the cells of a row: values, or mappings with ``text``, ``url`` and ``indent`` (1 or 2)."""
    return mark_safe("".join(_table_cell(cell, columns[index]) for index, cell in enumerate(row)))


def _table_cell(cell: Any, column: Mapping[str, Any]) -> str:
    values: Mapping[str, Any] = cell if isinstance(cell, Mapping) else {"text": cell}
    shown = conditional_escape(UNKNOWN_TEXT if values["text"] is None else values["text"])
    if values.get("url"):
        shown = format_html('<a href="{}">{}</a>', values["url"], shown)
    classes = ["num"] if column.get("numeric") else []
    if values.get("indent"):
        classes.append(f"indent-{int(values['indent'])}")
    # Both parts are safe. A page has hundreds of cells, and format_html would escape each part again.
    return f'<td class="{" ".join(classes)}">{shown}</td>' if classes else f"<td>{shown}</td>"
