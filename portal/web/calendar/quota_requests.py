"""Render the page on which a team lead requests a new quota."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone

from portal import policy
from portal.hardware_request import gpu_models_of_pool
from portal.reads.calendar import approvals as reads
from portal.services.approvals import submissions as verbs
from portal.web.components.quantities import gpu_model
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording import request_texts
from portal.wording.pages import calendar_pages
from scheduler.models import Pool, Quota, Team


def gpu_hours_fields(given: dict[str, Any]) -> dict[str, forms.Field]:
    """Return form fields for the GPU-hours that a guarantee covers.

    The fields are the number of GPU-hours, the period, and the effect after the GPU-hours are used up.
    """
    return {
        "gpu_hours": forms.IntegerField(
            label="GPU-hours",
            required=False,
            initial=given.get("gpu_hours"),
            help_text="Allowed use of the guarantee in each period. Empty: no limit.",
        ),
        "period": forms.ChoiceField(
            label="Period", choices=Quota.Period.choices, initial=given.get("period", "month"), required=False
        ),
        "when_used_up": forms.ChoiceField(
            label="When used up",
            choices=[(value, label[:1].upper() + label[1:]) for value, label in Quota.WhenUsedUp.choices],
            initial=given.get("when_used_up", "borrow"),
            required=False,
        ),
    }


class QuotaRequestForm(ServiceForm):
    pool = forms.ChoiceField(label="Pool")
    model = forms.ChoiceField(label="GPU model")
    guaranteed_gpus = forms.IntegerField(
        label="Guaranteed GPUs", help_text="The team can always have these GPUs."
    )
    borrow_limit_gpus = forms.IntegerField(
        label="May borrow",
        required=False,
        help_text="Free GPUs in addition to the guarantee. Empty: no limit.",
    )
    why = forms.CharField(
        label="Why", max_length=2000, widget=forms.Textarea(attrs={"rows": 3}), required=False
    )

    def __init__(self, *args: Any, pools: dict[str, Pool], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["pool"].choices = [(slug, pool.name) for slug, pool in pools.items()]
        models = sorted({model for pool in pools.values() for model in gpu_models_of_pool(pool)})
        fields["model"].choices = [(model, gpu_model(model)) for model in models]
        self.fields |= gpu_hours_fields({})
        self.order_fields(
            ["pool", "model", "guaranteed_gpus", "borrow_limit_gpus", "gpu_hours", "period", "when_used_up"]
        )

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        data["period"] = data.get("period") or Quota.Period.MONTH.value
        data["when_used_up"] = data.get("when_used_up") or Quota.WhenUsedUp.BORROW.value
        return data


@sign_in_required
def request_quota(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Show or submit a team lead's request for a new guarantee. An operator decides about the request."""
    user = current_user(request)
    team = get_object_or_404(policy.visible_teams(user), slug=slug)
    policy.require(user, "quota.request", team)
    pools = {pool.slug: pool for pool in Pool.objects.filter(kind="dynamic").order_by("name")}
    lines = reads.guarantee_lines(team, pools.values())
    form = QuotaRequestForm(request.POST or None, pools=pools)
    too_much = ""
    if request.method == "POST" and form.is_valid():
        given = dict(form.cleaned_data)
        pool = pools[given.pop("pool")]
        too_much = _over_capacity_sentence(team, lines, pool, given)
        made = None
        if not too_much or request.POST.get("anyway"):
            now = timezone.now()
            made = form.carry_out(
                verbs.request_quota_change, actor=user, team=team, pool=pool, now=now, **given
            )
        if made is not None:
            messages.success(request, calendar_pages.QUOTA_REQUESTED)
            return redirect("submission", made.public_id)
    context = {"team": team, "form": form, "lines": lines, "too_much": "" if form.errors else too_much}
    response: HttpResponse = render(
        request, "manage/quota_change.html", context, status=400 if form.errors else 200
    )
    return response


def _over_capacity_sentence(
    team: Team, lines: list[reads.GuaranteeLine], pool: Pool, given: dict[str, Any]
) -> str:
    """Return the reason why no operator can approve the request; "" if an operator can."""
    line = next((line for line in lines if (line.pool, line.model) == (pool, given["model"])), None)
    asked = given["guaranteed_gpus"]
    if line is None or asked <= line.most:
        return ""
    return request_texts.guarantee_effect(
        team=team.name,
        pool=pool.name,
        model=line.model,
        asked=asked,
        most=line.most,
        capacity=line.capacity,
        others=line.others,
        own=line.own,
    )
