"""Render credits and manual adjustments: the list, the proposal, and the page of one with its effect."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money.adjustments import visible_adjustments
from portal.reads.money.charge_scope import charge_scope
from portal.services.money.adjusting import decisions
from portal.services.money.adjusting.drafts import open_months
from portal.web.money.adjusting.forms import AdjustmentDecisionForm, AdjustmentForm, WithdrawalForm
from portal.web.money.months import month_or_404
from portal.web.page.access import check_parameters, current_user, get_visible_or_404, sign_in_required
from portal.web.page.pagination import paginate
from portal.wording.chargeback import adjustment_texts as texts
from telemetry.models import Adjustment, AdjustmentState, Statement

LIST_PARAMETERS = ("month", "page")
PREFILLED = ("kind", "month", "amount", "cost_centre", "charge", "credited_month")


@sign_in_required
def adjustments(request: HttpRequest) -> HttpResponseBase:
    """List the visible credits and adjustments of ``?month=``, or of all months; newest first."""
    user, now = current_user(request), timezone.now()
    check_parameters(request, LIST_PARAMETERS)
    month = month_or_404(request.GET["month"], now) if request.GET.get("month") else None
    rows = visible_adjustments(user)
    page = paginate(request, rows if month is None else rows.filter(statement__month=month))
    context = {
        "page": page,
        "rows": [{"row": row, "state": texts.STATES[row.state]} for row in page.object_list],
        "month": month,
        "scope": charge_scope(user),
        "may_change": policy.may(user, "adjustment.change"),
        "now": now,
    }
    return render(request, "adjustments/list.html", context)


@sign_in_required
def new_adjustment(request: HttpRequest) -> HttpResponseBase:
    """Propose a credit or an adjustment. The query prefills the form, for example with a charge line."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "adjustment.change")
    initial = {name: request.GET[name] for name in PREFILLED if name in request.GET}
    months = open_months(now)
    credited = list(Statement.objects.order_by("-month").values_list("month", flat=True))
    form = AdjustmentForm(request.POST or None, user=user, months=months, credited=credited, initial=initial)
    if request.method == "POST" and form.is_valid():
        row = form.carry_out(decisions.propose_adjustment, actor=user, request=form.wanted(), now=now)
        if row is not None:
            messages.success(request, texts.PROPOSED.format(number=row.number))
            return redirect("adjustment", number=row.number)
    status = 400 if form.errors else 200
    return render(request, "adjustments/new.html", {"form": form, "now": now}, status=status)


@sign_in_required
def adjustment(request: HttpRequest, number: str) -> HttpResponseBase:
    """Show one credit or adjustment with its effect. Finance approves, rejects or withdraws it."""
    user = current_user(request)
    row = get_visible_or_404(visible_adjustments(user), "adjustment", number=number)
    verb = request.POST.get("verb", "")
    decision = AdjustmentDecisionForm(request.POST if verb in ("approve", "reject") else None)
    withdrawal = WithdrawalForm(request.POST if verb == "withdraw" else None)
    done = _carry_out(verb, decision, withdrawal, user, row)
    if done is not None:
        sentence = texts.DONE[verb] if done.pk == row.pk else texts.COUNTER_PROPOSED
        messages.success(request, sentence.format(number=done.number))
        return redirect("adjustment", number=done.number)
    row = visible_adjustments(user).get(pk=row.pk)
    may_change = policy.may(user, "adjustment.change")
    waits = row.state == AdjustmentState.PROPOSED
    context = {
        "row": row,
        "scope": charge_scope(user),
        "facts": _facts(row, user),
        "state": texts.STATES[row.state],
        "effect": decisions.effect_of(row) if waits else None,
        "decision": decision if may_change and waits else None,
        "own": row.author_id == user.pk,
        "own_proposal": texts.OWN_PROPOSAL,
        "withdrawal": withdrawal if may_change and row.state in ("proposed", "approved") else None,
        "withdrawals": [
            {"number": each.number, "state": texts.STATES[each.state]}
            for each in row.withdrawals.exclude(state__in=("rejected", "withdrawn"))
        ],
        "now": timezone.now(),
    }
    failed = decision.errors or withdrawal.errors
    return render(request, "adjustments/one.html", context, status=400 if failed else 200)


def _carry_out(
    verb: str, decision: AdjustmentDecisionForm, withdrawal: WithdrawalForm, user: User, row: Adjustment
) -> Adjustment | None:
    """Carry out the verb of the page. Return the row that it changed or made; None if nothing was done."""
    given: dict[str, Any] = {"actor": user, "adjustment": row, "now": timezone.now()}
    if verb == "withdraw" and withdrawal.is_valid():
        return withdrawal.carry_out(decisions.withdraw_adjustment, **given, **withdrawal.cleaned_data)
    if verb in ("approve", "reject") and decision.is_valid():
        verbs = {"approve": decisions.approve_adjustment, "reject": decisions.reject_adjustment}
        return decision.carry_out(verbs[verb], **given, **decision.cleaned_data)
    return None


def _facts(row: Adjustment, user: User) -> list[dict[str, Any]]:
    """Return the facts of an adjustment with links to the objects that it names."""
    facts = [
        ("Number", row.number, ""),
        ("Statement of", f"{row.statement.month:%B %Y}", ""),
        ("Cost centre", row.cost_centre, reverse("cost-centre", args=[row.cost_centre])),
        ("Team", row.team.name if row.team else "", ""),
        ("Project", row.project.name if row.project else "", ""),
        ("Credits charges of", f"{row.credited.month:%B %Y}" if row.credited else "", ""),
        (
            "Charge line",
            str(row.charge_id or ""),
            reverse("charge-line", args=[row.charge_id]) if row.charge_id else "",
        ),
        (
            "Takes back",
            row.withdraws.number if row.withdraws else "",
            reverse("adjustment", args=[row.withdraws.number]) if row.withdraws else "",
        ),
        ("Proposed by", row.author_name, ""),
        ("Decided by", row.decided_by_name, ""),
        ("Note", row.decision_note, ""),
    ]
    sees_centre = policy.visible_cost_centres(user).filter(code=row.cost_centre).exists()
    return [
        {"label": label, "value": value, "url": url if label != "Cost centre" or sees_centre else ""}
        for label, value, url in facts
        if value
    ]
