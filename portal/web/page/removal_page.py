"""Render the page that shows the effect of a removal or a move, and asks for its confirmation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal.services.removal_effect import RemovalEffect
from portal.web.page.access import current_user
from portal.web.page.service_form import ServiceForm
from portal.wording.removal_texts import REMOVAL_VERBS
from scheduler.core.model.slots import SLOTS_PER_GPU


class RemovalReasonForm(ServiceForm):
    why = forms.CharField(label="Reason, kept in the audit record", required=False, max_length=1000)


def confirm_removal(
    request: HttpRequest,
    effect: RemovalEffect,
    operation: Callable[..., Any],
    *,
    back: str,
    to: str,
    **row: Any,
) -> HttpResponseBase:
    """Show the effect of a removal or move. On POST, call ``operation`` and redirect to ``to``.

    ``operation`` gets the keyword arguments ``row`` and the user's reason. ``back`` is the URL of the link
    that leaves the page without a change.
    """
    verb, now = REMOVAL_VERBS[effect.verb], timezone.now()
    form = RemovalReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        done = form.carry_out(
            operation, actor=current_user(request), why=form.cleaned_data["why"], now=now, **row
        )
        if done is not None:
            messages.success(request, verb.done.format(effect.name, effect.pool))
            return redirect(to)
    context = {
        "effect": effect,
        "quotas": [(quota, quota.guaranteed_slots / SLOTS_PER_GPU) for quota in effect.quotas],
        "title": verb.title.format(effect.name),
        "text": verb.text,
        "label": verb.label,
        "form": form,
        "back": back,
        "now": now,
    }
    return render(request, "manage/removal.html", context, status=400 if form.errors else 200)
