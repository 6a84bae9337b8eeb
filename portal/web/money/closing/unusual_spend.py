"""Store a person's reason for unusual spend."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.reads.money.unusual_spend import unusual_rows
from portal.services.money.unusual_spend import explain_unusual_spend
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import unusual_texts
from telemetry.models import StatementState


class ExplainForm(ServiceForm):
    reason = forms.CharField(
        label="Why it is right",
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="Stored with your name, and shown to everybody who sees this spend.",
    )


@sign_in_required
def explain(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Show one unusual spend with its evidence, and store a reason for it."""
    user, now = current_user(request), timezone.now()
    found = policy.visible_unusual_spend(user).filter(pk=pk)
    spend = found.select_related("statement").first()
    if spend is None:
        raise Http404
    if request.method == "POST":
        policy.require(user, "unusual_spend.explain", spend)
    form = ExplainForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        done = form.carry_out(explain_unusual_spend, actor=user, spend=spend, now=now, **form.cleaned_data)
        if done is not None:
            messages.success(request, unusual_texts.EXPLAINED)
            return redirect(f"{reverse('chargeback')}?month={spend.statement.month:%Y-%m}#unusual")
    month = spend.statement.month
    [row] = unusual_rows(user, found, month, spend.statement.state == StatementState.CLOSED)
    context = {"row": row, "form": form, "now": now, "month": month}
    return render(request, "manage/unusual_spend.html", context, status=400 if form.errors else 200)
