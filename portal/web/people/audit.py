"""Render the page of the audit trail."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import date
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone

from portal import policy
from portal.models import AuditEvent
from portal.reads.money.charged_months import parse_month
from portal.reads.money.closing import journal
from portal.reads.people import organisation as reads
from portal.reads.people.audit_objects import object_urls, referenced_names
from portal.services.audit_trail.verification import audit_integrity
from portal.web.page.access import sign_in_required
from portal.web.page.csv_export import MAX_CSV_ROWS, csv_response
from portal.wording.pages import people_pages
from portal.wording.people import audit_texts, audit_values

EVENTS_PER_PAGE = 50
CSV_COLUMNS = ("at", "actor", "via", "verb", "target", "name", "team", "before", "after", "why")


class AuditFilterForm(forms.Form):
    words = forms.CharField(
        required=False,
        max_length=80,
        label="Find",
        widget=forms.TextInput(attrs={"placeholder": people_pages.AUDIT_SEARCH_HINT}),
    )
    verb = forms.CharField(
        required=False, max_length=60, label="Verb", widget=forms.TextInput(attrs={"placeholder": "Any verb"})
    )
    actor = forms.CharField(
        required=False, max_length=150, label="Who", widget=forms.TextInput(attrs={"placeholder": "Anybody"})
    )
    money_of = forms.CharField(
        required=False,
        max_length=20,
        label="Money of month",
        widget=forms.TextInput(attrs={"placeholder": people_pages.AUDIT_MONTH_HINT}),
    )

    def clean_money_of(self) -> date | None:
        """Return the first day of the month; None without a month."""
        text = self.cleaned_data["money_of"]
        month = parse_month(text) if text else None
        if text and month is None:
            raise forms.ValidationError(people_pages.AUDIT_MONTH_INVALID.format(given=text))
        return month


@sign_in_required
def audit(request: HttpRequest) -> HttpResponseBase:
    """List visible audit events that match the filters; ``format=csv`` downloads them.

    ``?money_of=2026-10`` selects the changes of the money of a month. An invalid filter gives status 400 and
    the problem beside its field, and no events.
    """
    form = AuditFilterForm(request.GET)
    if not form.is_valid():
        return _audit_page(request, form, AuditEvent.objects.none(), status=400)
    filters = dict(form.cleaned_data)
    month = filters.pop("money_of", None)
    rows = reads.audit_events(request.user, **filters)
    if month is not None:
        rows = rows.filter(journal.of_month(month))
    if request.GET.get("format") == "csv":
        cells = map(_csv_cells, rows[:MAX_CSV_ROWS].iterator(chunk_size=1000))
        return csv_response("audit.csv", CSV_COLUMNS, cells)
    return _audit_page(request, form, rows)


def _audit_page(
    request: HttpRequest, form: AuditFilterForm, rows: QuerySet[AuditEvent], status: int = 200
) -> HttpResponseBase:
    page = Paginator(rows, EVENTS_PER_PAGE).get_page(request.GET.get("page"))
    events = list(page)
    urls, names = object_urls(request.user, events), referenced_names(events)
    shown = [
        {
            "event": event,
            "verb": event.verb_text,
            "verb_url": f"?{urlencode({'verb': event.verb})}",
            "url": urls.get(event.target, ""),
            "changes": changed_fields(event, names),
        }
        for event in events
    ]
    now = timezone.now()
    context = {"page": page, "rows": shown, "form": form, "now": now}
    if policy.may(request.user, "audit.see_all"):
        state = asdict(audit_integrity(now, has_receiver=bool(settings.GPUPOOL_AUDIT_STREAM)))
        context["integrity"] = audit_texts.integrity_sentences(state, now)
        context["findings"] = [audit_texts.finding_sentence(finding) for finding in state["findings"]]
    return render(request, "organisation/audit.html", context, status=status)


def changed_fields(event: AuditEvent, names: audit_values.Names) -> list[dict[str, Any]]:
    """Return the changed fields of an event with their values before and after.

    ``names`` has the names of rows that the values refer to.
    """
    before, after = event.before or {}, event.after or {}
    fields = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [
        {
            "name": audit_values.field_text(name),
            "before": audit_values.value_text(name, before.get(name), names),
            "after": audit_values.value_text(name, after.get(name), names),
        }
        for name in fields
    ]


def _csv_cells(event: AuditEvent) -> list[Any]:
    return [
        event.at,
        event.actor_name,
        event.via,
        event.verb,
        event.target,
        event.target_name,
        event.team.slug if event.team else "",
        json.dumps(event.before),
        json.dumps(event.after),
        event.why,
    ]
