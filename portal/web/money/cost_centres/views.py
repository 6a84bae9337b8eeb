"""Render the pages of cost centres: the list, one cost centre, and the change of a split with its effect."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.reads.money import cost_centres as reads
from portal.reads.money.charge_scope import charge_scope
from portal.reads.money.unmapped import unmapped_payers
from portal.services.money.cost_centres import directory, splits
from portal.web.money.cost_centres.forms import (
    CostCentreEntryForm,
    NewCostCentreForm,
    RetirementForm,
    SplitForm,
)
from portal.web.page.access import current_user, get_visible_or_404, sign_in_required
from portal.wording.pages.money import cost_centre_pages


@sign_in_required
def cost_centres(request: HttpRequest) -> HttpResponseBase:
    """Show who pays for projects and dedicated pools, and the directory; finance adds entries."""
    user, now = current_user(request), timezone.now()
    form = NewCostCentreForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        row = form.carry_out(directory.add_cost_centre, actor=user, now=now, **form.cleaned_data)
        if row is not None:
            messages.success(request, cost_centre_pages.CENTRE_ADDED.format(code=row.code))
            return redirect("cost-centres")
    context = {
        "payers": reads.payer_rows(user, now),
        "unmapped": unmapped_payers(user, now),
        "entries": reads.directory_rows(user, now),
        "form": form,
        "may_change": policy.may(user, "cost_centre.change"),
        "now": now,
    }
    return render(request, "cost_centres/list.html", context, status=400 if form.errors else 200)


@sign_in_required
def cost_centre(request: HttpRequest, code: str) -> HttpResponseBase:
    """Show one cost centre: its entry, for whom it pays, and its months; finance changes or retires it."""
    user, now = current_user(request), timezone.now()
    entry = get_visible_or_404(policy.visible_cost_centres(user), "cost centre", code=code)
    verb = request.POST.get("verb", "")
    stored = {field: getattr(entry, field) for field in directory.ENTRY_FIELDS}
    form = CostCentreEntryForm(request.POST if verb == "change" else None, initial=stored)
    retirement = RetirementForm(request.POST if verb == "retire" else None)
    done = _carry_out(verb, form, retirement, {"actor": user, "now": now, "centre": entry})
    if done:
        messages.success(request, done.format(code=entry.code))
        return redirect("cost-centre", code=entry.code)
    periods = reads.paid_periods(user, entry.code, now)
    context = {
        "entry": entry,
        "scope": charge_scope(user),
        "current": [period for period in periods if period.is_now],
        "periods": periods,
        "months": reads.paid_months(entry.code) if policy.sees_all_charges(user) else [],
        "form": form,
        "retirement": retirement,
        "may_change": policy.may(user, "cost_centre.change"),
        "now": now,
    }
    failed = form.errors or retirement.errors
    return render(request, "cost_centres/one.html", context, status=400 if failed else 200)


def _carry_out(
    verb: str, form: CostCentreEntryForm, retirement: RetirementForm, context: dict[str, Any]
) -> str:
    """Carry out the verb of the page of one cost centre. Return its sentence; empty if nothing was done."""
    row = None
    if verb == "change" and form.is_valid():
        row = form.carry_out(directory.change_cost_centre, **context, **form.cleaned_data)
    elif verb == "retire" and retirement.is_valid():
        row = retirement.carry_out(directory.retire_cost_centre, **context, **retirement.cleaned_data)
    elif verb == "restore":
        row = directory.retire_cost_centre(**context, retired_from=None)
    return cost_centre_pages.DONE[verb] if row is not None else ""


@sign_in_required
def cost_centre_split(request: HttpRequest) -> HttpResponseBase:
    """Change who pays for a project or a dedicated pool. The effect is shown before it is saved."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "cost_centre.change")
    form = SplitForm(request.POST or None, user=user, initial={"payer": request.GET.get("payer", "")})
    amounts: Any = None
    if request.method == "POST" and form.is_valid():
        arguments = form.arguments()
        if request.POST.get("verb") != "save":
            amounts = form.carry_out(splits.preview_split, actor=user, **arguments)
        elif _saved(form, user=user, now=now, why=form.cleaned_data["why"], **arguments):
            name = form.payers[form.cleaned_data["payer"]].name
            messages.success(request, cost_centre_pages.SPLIT_SET.format(name=name))
            return redirect("cost-centres")
    context = {
        "form": form,
        "share_fields": form.share_fields(),
        "amounts": amounts,
        "has_effect": amounts is not None,
        "earliest": splits.earliest_start(),
        "now": now,
    }
    return render(request, "cost_centres/split.html", context, status=400 if form.errors else 200)


def _saved(form: SplitForm, *, user: Any, **arguments: Any) -> bool:
    return form.carry_out(splits.set_split, actor=user, **arguments) is not None
