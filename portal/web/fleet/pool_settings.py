"""Render the pages of a pool's settings and of a new pool."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone

from portal import policy
from portal.reads.fleet import gpu_health as repair_reads
from portal.reads.fleet import host_details as host_reads
from portal.reads.people import organisation as reads
from portal.services.fleet import pools as verbs
from portal.services.fleet.gpu_repairs import REPAIR_POLICY_FIELDS as REPAIR_POLICY
from portal.services.fleet.gpu_repairs import change_repair_policy
from portal.services.fleet.pool_work import WORK_FIELDS, change_pool_work
from portal.web.fleet.repairs import RepairPolicyForm
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.duration_field import DURATION_EXAMPLES, DurationInSecondsField
from portal.web.page.service_form import ServiceForm
from portal.wording.host_texts import isolation_note
from portal.wording.pages import fleet_pages
from portal.wording.people import unix_texts
from scheduler.models import Pool, RunsAs, Team
from scheduler.state.isolation import Isolation


class PoolLimitsForm(ServiceForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, (label, words) in fleet_pages.LIMIT_LABELS.items():
            if verbs.POOL_LIMITS[name][2] == "seconds":
                self.fields[name] = DurationInSecondsField(
                    label=label, help_text=f"{words} {DURATION_EXAMPLES}"
                )
                continue
            self.fields[name] = forms.IntegerField(
                label=label, help_text=words, required=name not in verbs.NULLABLE_LIMITS
            )


class PoolIsolationForm(ServiceForm):
    isolation = forms.ChoiceField(
        choices=Isolation.choices,
        label="Hosts need at least",
        help_text="Hosts with less isolation get no new work.",
    )


class PoolWorkForm(ServiceForm):
    runs_as = forms.ChoiceField(
        choices=RunsAs.choices, label="Work runs as", help_text=unix_texts.RUNS_AS_HELP
    )
    perf_events = forms.BooleanField(
        required=False, label="Work may use perf_event_open", help_text=unix_texts.PERF_EVENTS_HELP
    )
    home_limit_gib = forms.IntegerField(
        required=False, label="Largest size of a home", help_text=unix_texts.HOME_LIMIT_HELP
    )


class NewPoolForm(ServiceForm):
    name = forms.CharField(max_length=200, label="Name")
    kind = forms.ChoiceField(
        choices=[("dynamic", "Dynamic: shared by quota"), ("static", "Static: belongs to one team")],
        label="Kind",
    )
    team: forms.ModelChoiceField[Team] = forms.ModelChoiceField(
        queryset=None,
        required=False,
        label="Owner",
        help_text="Only for a static pool.",
        empty_label="None",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["team"].queryset = reads.all_teams()  # type: ignore[attr-defined]


@sign_in_required
def pool_settings(request: HttpRequest, slug: str) -> HttpResponse:
    """Show and change a pool's limits, its isolation and its repair policy."""
    posted = request.method == "POST"
    pools = policy.visible_pools if posted else policy.visible_pools_with_removed
    row = get_object_or_404(pools(request.user), slug=slug)
    if request.method == "POST" and "isolation" in request.POST:
        return _change_isolation(request, row)
    if request.method == "POST" and "runs_as" in request.POST:
        return _change_work(request, row)
    if request.method == "POST" and "stray_action" in request.POST:
        return _change_repair_policy(request, row)
    form = PoolLimitsForm(
        request.POST or None, initial={name: getattr(row, name) for name in fleet_pages.LIMIT_LABELS}
    )
    if (
        request.method == "POST"
        and form.is_valid()
        and (
            form.carry_out(
                verbs.change_pool,
                actor=current_user(request),
                pool=row,
                now=timezone.now(),
                **form.cleaned_data,
            )
            is not None
        )
    ):
        messages.success(request, fleet_pages.LIMITS_SAVED)
        return redirect("pool", slug)
    return _pool_page(request, row, form, PoolIsolationForm(initial={"isolation": row.isolation}))


def _change_isolation(request: HttpRequest, row: Pool) -> HttpResponse:
    form = PoolIsolationForm(request.POST)
    if form.is_valid():
        done = form.carry_out(
            verbs.demand_isolation,
            actor=current_user(request),
            pool=row,
            now=timezone.now(),
            **form.cleaned_data,
        )
        if done is not None:
            messages.success(request, fleet_pages.SETTINGS_SAVED)
            return redirect("pool", row.slug)
    return _pool_page(
        request,
        row,
        PoolLimitsForm(initial={name: getattr(row, name) for name in fleet_pages.LIMIT_LABELS}),
        form,
    )


def _change_work(request: HttpRequest, row: Pool) -> HttpResponse:
    form = PoolWorkForm(request.POST)
    if form.is_valid():
        given = {"actor": current_user(request), "pool": row, "now": timezone.now()}
        if form.carry_out(change_pool_work, **given, **form.cleaned_data) is not None:
            messages.success(request, unix_texts.WORK_SAVED)
            return redirect("pool", row.slug)
    limits = PoolLimitsForm(initial={name: getattr(row, name) for name in fleet_pages.LIMIT_LABELS})
    return _pool_page(
        request, row, limits, PoolIsolationForm(initial={"isolation": row.isolation}), work=form
    )


def _change_repair_policy(request: HttpRequest, row: Pool) -> HttpResponse:
    form = RepairPolicyForm(request.POST, pool=row)
    if form.is_valid():
        done = form.carry_out(
            change_repair_policy,
            actor=current_user(request),
            pool=row,
            now=timezone.now(),
            **form.cleaned_data,
        )
        if done is not None:
            messages.success(request, fleet_pages.REPAIR_POLICY_SAVED)
            return redirect("pool", row.slug)
    limits = PoolLimitsForm(initial={name: getattr(row, name) for name in fleet_pages.LIMIT_LABELS})
    return _pool_page(request, row, limits, PoolIsolationForm(initial={"isolation": row.isolation}), form)


def _pool_page(
    request: HttpRequest,
    row: Pool,
    form: PoolLimitsForm,
    isolation: PoolIsolationForm,
    repair: RepairPolicyForm | None = None,
    work: PoolWorkForm | None = None,
) -> HttpResponse:
    work = work or PoolWorkForm(initial={name: getattr(row, name) for name in WORK_FIELDS})
    repair = repair or RepairPolicyForm(
        pool=row, initial={name: getattr(row, name) for name in REPAIR_POLICY}
    )
    hosts = list(row.hosts.select_related("pool").order_by("name"))
    provided = [host.isolation_level for host in hosts if host.isolation]
    context = {
        "repair": repair,
        "work": work,
        "diagnostic_tool": repair_reads.diagnostic_tool(row),
        "pool": row,
        "form": form,
        "isolation": isolation,
        "isolation_note": isolation_note(row.isolation, provided, row.isolation_from_hosts),
        "waiting": reads.queue_leaders(row) if policy.sees_all_teams(request.user) else None,
        "hosts": [
            {
                "name": host.name,
                "has": host.get_isolation_level_display(),
                "lacks": host_reads.missing_isolation(host),
            }
            for host in hosts
        ],
        "may_change": policy.may(request.user, "pool.change") and row.removed_at is None,
    }
    status = 400 if any(each.errors for each in (form, isolation, repair, work)) else 200
    return render(request, "organisation/pool.html", context, status=status)


@sign_in_required
def pool_new(request: HttpRequest) -> HttpResponse:
    """Create a pool; its limits start with the defaults."""
    policy.require(request.user, "pool.change")
    form = NewPoolForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        made = form.carry_out(
            verbs.create_pool, actor=current_user(request), now=timezone.now(), **form.cleaned_data
        )
        if isinstance(made, Pool):
            messages.success(request, fleet_pages.POOL_CREATED.format(name=made.name))
            return redirect("pool", made.slug)
    return render(request, "organisation/pool_new.html", {"form": form}, status=400 if form.errors else 200)
