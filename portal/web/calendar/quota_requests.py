"""Render the page on which a team lead requests a new quota."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone

from portal import policy
from portal.reads.calendar import approvals as reads
from portal.services.approvals import submissions as verbs
from portal.services.approvals.quota_changes import QUOTA_VALUES, VALUES_WITHOUT_QUOTA, present_values
from portal.web.components.quantities import gpu_model
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording import request_texts
from portal.wording.pages import calendar_pages
from scheduler.models import Pool, Quota, Team


def quota_fields(values: dict[str, Any]) -> dict[str, forms.Field]:
    """Return form fields for the values of a quota, which show the given ``values``."""
    return {
        "guaranteed_gpus": forms.IntegerField(
            label="Guaranteed GPUs",
            initial=values["guaranteed_gpus"],
            help_text="The team can always have these GPUs.",
        ),
        "borrow_limit_gpus": forms.IntegerField(
            label="May borrow",
            required=False,
            initial=values["borrow_limit_gpus"],
            help_text="Free GPUs in addition to the guarantee. Empty: no limit.",
        ),
        "gpu_hours": forms.IntegerField(
            label="GPU-hours",
            required=False,
            initial=values["gpu_hours"],
            help_text="Allowed use of the guarantee in each period. Empty: no limit.",
        ),
        "period": forms.ChoiceField(
            label="Period", choices=Quota.Period.choices, initial=values["period"], required=False
        ),
        "when_used_up": forms.ChoiceField(
            label="When used up",
            choices=[(value, label[:1].upper() + label[1:]) for value, label in Quota.WhenUsedUp.choices],
            initial=values["when_used_up"],
            required=False,
        ),
    }


class QuotaRequestForm(ServiceForm):
    """A form that shows the present quota of one model in one pool, and requests the values that differ."""

    pool = forms.ChoiceField(label="Pool", widget=forms.HiddenInput)
    model = forms.ChoiceField(label="GPU model", widget=forms.HiddenInput)
    why = forms.CharField(
        label="Why", max_length=2000, widget=forms.Textarea(attrs={"rows": 3}), required=False
    )

    def __init__(
        self, *args: Any, lines: list[reads.GuaranteeLine], values: dict[str, Any], **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.pools = {line.pool.slug: line.pool for line in lines}
        fields: dict[str, Any] = self.fields
        fields["pool"].choices = [(slug, pool.name) for slug, pool in self.pools.items()]
        fields["model"].choices = sorted({(line.model, gpu_model(line.model)) for line in lines})
        for name, made in quota_fields(values).items():
            # The quota may change while the page is open: compare with the values that the page has shown.
            made.show_hidden_initial = True
            fields[name] = made

    def requested(self) -> dict[str, Any]:
        """Return the values that differ from those that the page has shown."""
        return {
            name: self.cleaned_data[name]
            for name in QUOTA_VALUES
            if name in self.changed_data and self.cleaned_data[name] != ""
        }


@sign_in_required
def request_quota(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Show or submit a team lead's request for another quota. An operator decides about the request.

    ``pool`` and ``model`` choose the quota; the default is the first that the team has.
    """
    user = current_user(request)
    team = get_object_or_404(policy.visible_teams(user), slug=slug)
    policy.require(user, "quota.request", team)
    lines = reads.guarantee_lines(team, Pool.objects.filter(kind="dynamic").order_by("name"))
    line = _chosen_line(lines, request.POST or request.GET)
    values = VALUES_WITHOUT_QUOTA if line is None else present_values(team, line.pool, line.model)
    initial = {} if line is None else {"pool": line.pool.slug, "model": line.model}
    form = QuotaRequestForm(request.POST or None, lines=lines, values=values, initial=initial)
    too_much = ""
    if request.method == "POST" and form.is_valid() and line is not None:
        wanted = form.requested()
        too_much = _over_capacity_sentence(team, line, wanted.get("guaranteed_gpus"))
        made = None
        if not too_much or request.POST.get("anyway"):
            made = form.carry_out(
                verbs.request_quota_change,
                actor=user,
                team=team,
                pool=line.pool,
                model=line.model,
                now=timezone.now(),
                why=form.cleaned_data["why"],
                **wanted,
            )
        if made is not None:
            messages.success(request, calendar_pages.QUOTA_REQUESTED)
            return redirect("submission", made.public_id)
    context = {
        "team": team,
        "form": form,
        "line": line,
        "lines": lines,
        "too_much": "" if form.errors else too_much,
    }
    response: HttpResponse = render(
        request, "manage/quota_change.html", context, status=400 if form.errors else 200
    )
    return response


def _chosen_line(lines: list[reads.GuaranteeLine], given: Mapping[str, str]) -> reads.GuaranteeLine | None:
    """Return the line of the named pool and model; without names, the first with a guarantee."""
    if given.get("model"):
        named = [
            line for line in lines if (line.pool.slug, line.model) == (given.get("pool"), given["model"])
        ]
        return named[0] if named else None
    return next((line for line in lines if line.own), lines[0] if lines else None)


def _over_capacity_sentence(team: Team, line: reads.GuaranteeLine, asked: int | None) -> str:
    """Return the reason why no operator can approve the request; "" if an operator can."""
    if asked is None or asked <= line.most:
        return ""
    return request_texts.guarantee_effect(
        team=team.name,
        pool=line.pool.name,
        model=line.model,
        asked=asked,
        most=line.most,
        capacity=line.capacity,
        others=line.others,
        own=line.own,
    )
