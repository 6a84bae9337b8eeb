"""Render the page on which operators see and set how long samples and rollups are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.services.fleet import sample_retention as verbs
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import retention_pages
from telemetry.rollups.stored_bytes import RETENTION_FIELDS, StoredLevel, present_retention, stored_levels

DAYS_PER_YEAR = 365


class DaysTextField(forms.CharField):
    """The days of a level as text. The service checks it, so that all refusals have the same words."""

    def validate(self, value: str) -> None:
        """Accept every text, also an empty one."""


class RetentionForm(ServiceForm):
    """The days of each level as text. Only the fields that were changed are sent to the service."""

    why = forms.CharField(
        required=False, max_length=300, label="Reason", help_text="Stored in the audit log."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, (label, words) in retention_pages.FIELD_LABELS.items():
            self.fields[name] = DaysTextField(label=label, help_text=words, max_length=20)
        self.order_fields([*RETENTION_FIELDS, "why"])

    def days(self) -> dict[str, int | str]:
        """Return the days that differ from the present ones, as the service takes them."""
        changed = [name for name in RETENTION_FIELDS if name in self.changed_data]
        return {name: verbs.parsed_days(self.cleaned_data[name]) for name in changed}


@sign_in_required
def retention(request: HttpRequest) -> HttpResponse:
    """Show the bytes of each level. On POST, show the effect of a change; with ``confirmed``, make it."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "retention.change" if request.method == "POST" else "retention.see")
    kept = present_retention()
    initial = {name: _day_text(getattr(kept, name)) for name in RETENTION_FIELDS}
    form = RetentionForm(request.POST or None, initial=initial)
    changes: Sequence[verbs.LevelChange] | None = None
    if request.method == "POST" and form.is_valid():
        given: dict[str, Any] = {"actor": user, "now": now, **form.days()}
        if request.POST.get("confirmed"):
            if form.carry_out(verbs.set_sample_retention, why=form.cleaned_data["why"], **given) is not None:
                messages.success(request, retention_pages.RETENTION_SAVED)
                return redirect("retention")
        else:
            changes = form.carry_out(verbs.preview_retention, **given)
    context = {
        "form": form,
        "levels": [_level_row(level) for level in stored_levels(now)],
        "changes": None if changes is None else [_change_row(change) for change in changes],
        "may_change": policy.may(user, "retention.change"),
    }
    return render(request, "organisation/retention.html", context, status=400 if form.errors else 200)


def _day_text(days: int | None) -> str:
    return verbs.UNLIMITED if days is None else str(days)


def _level_row(level: StoredLevel) -> dict[str, Any]:
    label, content = retention_pages.LEVEL_LABELS[level.level]
    return {
        "label": label,
        "content": content,
        "kept": retention_pages.kept_for(level.days),
        "stored": level.stored,
        "expected": level.expected,
        "is_limited": level.days is not None,
        "yearly": level.expected_of(DAYS_PER_YEAR),
    }


def _change_row(change: verbs.LevelChange) -> dict[str, Any]:
    return {
        **_level_row(change.level),
        "kept_after": retention_pages.kept_for(change.days_after),
        "expected_after": change.expected_after,
        "is_limited_after": change.days_after is not None,
        "is_changed": change.is_changed,
        "is_shorter": change.is_shorter,
    }
