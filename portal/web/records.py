"""Records: who changed what, when and why; and what the engine planned on."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from typing import Any

from django import forms
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from portal import policy
from portal.models import AuditEvent
from portal.selectors import organisation as reads
from portal.selectors import recordings as kept
from portal.web.access import signed_in
from telemetry.statements import shown_as_text

PER_PAGE = 50
MOST_CSV_ROWS = 50_000


class AuditFilters(forms.Form):
    words = forms.CharField(
        required=False, max_length=80, label="Find", widget=forms.TextInput(attrs={"placeholder": "Name, id or reason"})
    )
    verb = forms.CharField(
        required=False, max_length=60, label="Verb", widget=forms.TextInput(attrs={"placeholder": "Any verb"})
    )
    actor = forms.CharField(
        required=False, max_length=150, label="Who", widget=forms.TextInput(attrs={"placeholder": "Anybody"})
    )


@signed_in
def audit(request: HttpRequest) -> HttpResponse:
    """Visible changes, filtered by the address; ``format=csv`` downloads them."""
    form = AuditFilters(request.GET)
    filters = form.cleaned_data if form.is_valid() else {}
    rows = reads.changes(request.user, **filters)
    if request.GET.get("format") == "csv":
        return _csv(rows[:MOST_CSV_ROWS])
    page = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    shown = [{"event": event, "verb": event.verb.replace("_", " "), "changes": difference(event)} for event in page]
    return render(
        request, "organisation/audit.html", {"page": page, "rows": shown, "form": form, "now": timezone.now()}
    )


@signed_in
def recordings(request: HttpRequest) -> HttpResponse:
    """Cycles whose decisions can be made again, the latest first."""
    policy.require(request.user, "recording.see")
    page = Paginator(kept.latest(), PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "organisation/recordings.html", {"page": page, "now": timezone.now()})


@signed_in
def recording(request: HttpRequest, pk: int) -> HttpResponse:
    """One of them as a file for ``manage.py replay_snapshot``."""
    policy.require(request.user, "recording.see")
    return kept.as_download(pk)


def difference(event: AuditEvent) -> list[dict[str, Any]]:
    """What changed, field by field: name, before, after; fields that stayed are left out."""
    before, after = event.before or {}, event.after or {}
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [
        {"name": name.replace("_", " "), "before": _said(before.get(name)), "after": _said(after.get(name))}
        for name in names
    ]


def _said(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _csv(rows: Iterable[AuditEvent]) -> HttpResponse:
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="audit.csv"'
    writer = csv.writer(response)
    writer.writerow(["at", "actor", "via", "verb", "target", "name", "team", "before", "after", "why"])
    for event in rows:
        team = event.team.slug if event.team else ""
        values = [event.at.isoformat(), event.actor_name, event.via, event.verb, event.target, event.target_name, team]
        writer.writerow(
            [shown_as_text(value) for value in (*values, json.dumps(event.before), json.dumps(event.after), event.why)]
        )
    return response
