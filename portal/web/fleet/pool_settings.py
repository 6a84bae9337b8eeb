"""Settings of the organisation, its pools, its templates and what is done about hardware events."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.text import slugify

from portal import policy
from portal.models import Organisation, Template
from portal.reads.fleet import gpu_health as repair_reads
from portal.reads.fleet import health_rules as rule_reads
from portal.reads.fleet import host_details as host_reads
from portal.reads.people import organisation as reads
from portal.services.fleet import health_rules as health_verbs
from portal.services.fleet import pools as verbs
from portal.services.fleet.gpu_repairs import REPAIR_POLICY_FIELDS as REPAIR_POLICY
from portal.services.fleet.gpu_repairs import change_repair_policy
from portal.services.people import organisation as organisation_service
from portal.services.work import templates
from portal.web.fleet.repairs import RepairPolicyForm
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.duration_field import DurationInSecondsField, format_seconds
from portal.web.page.service_form import ServiceForm
from scheduler.models import Pool, Team, WorkloadKind, WorkloadType
from scheduler.state.isolation import Isolation
from telemetry.models import HealthRule

LIMIT_LABELS = {
    "notice_seconds": (
        "Notice",
        "Between the warning and the stop signal, in which a checkpoint is written.",
    ),
    "grace_seconds": ("Grace", "Between the stop signal and the kill."),
    "minimum_runtime_seconds": (
        "Shortest undisturbed run",
        "How long a workload runs before it may be preempted.",
    ),
    "half_life_seconds": ("Half-life of use", "After which past use counts half in fair share."),
    "spare_gpus": ("Kept free", "GPUs that only work of critical priority may use. Empty: none."),
    "longest_runtime_seconds": ("Longest runtime", "That a workload may ask for."),
    "approval_above_gpus": ("Approval above", "Reservations of more GPUs than this wait for an operator."),
    "longest_reservation_seconds": ("Longest reservation", "From its start to its end."),
    "reservation_horizon_seconds": ("How far ahead", "From now, until which reservations may end."),
    "no_show_seconds": ("No-show limit", "After which an unused reservation is released."),
    "idle_limit_seconds": (
        "Idle limit",
        "Without work, after which a notebook is stopped, a warning before.",
    ),
    "most_gpus_per_user": ("Most GPUs per person", "Empty: no limit."),
    "most_gpus_per_workload": ("Most GPUs per workload", "Empty: no limit."),
    "most_waiting_per_user": (
        "Most waiting per person",
        "Notebooks and jobs in the queue, each task of an array counted. More are refused when they are submitted.",
    ),
    "most_waiting_per_team": ("Most waiting per team", "The same for all people of a team together."),
}


class OrganisationForm(ServiceForm):
    name = forms.CharField(max_length=200, label="Name")
    time_zone = forms.CharField(max_length=60, label="Time zone")
    currency = forms.CharField(
        max_length=10, label="Currency", help_text="Three letters. Sums are never converted."
    )


DURATION_EXAMPLES = "Such as 90 s, 15 min or 2 h."


class PoolLimitsForm(ServiceForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, (label, words) in LIMIT_LABELS.items():
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
        help_text="Those that have less take no new work.",
    )


class NewPoolForm(ServiceForm):
    name = forms.CharField(max_length=200, label="Name")
    kind = forms.ChoiceField(
        choices=[("dynamic", "Dynamic: shared by quota"), ("static", "Static: one team's")], label="Kind"
    )
    team: forms.ModelChoiceField[Team] = forms.ModelChoiceField(
        queryset=None, required=False, label="Owner", help_text="Of a static pool.", empty_label="None"
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["team"].queryset = reads.all_teams()  # type: ignore[attr-defined]


class WorkloadTemplateForm(ServiceForm):
    name = forms.CharField(max_length=200, label="Name")
    description = forms.CharField(max_length=1000, required=False, label="Description")
    kind = forms.ChoiceField(choices=WorkloadKind.choices, label="Kind")
    type = forms.ChoiceField(choices=WorkloadType.choices, label="Workload type")
    units = forms.IntegerField(initial=1, label="GPUs or slices")
    hosts = forms.IntegerField(
        initial=1, label="Hosts, each with so many", help_text="More than one for a job only."
    )
    profile = forms.CharField(
        max_length=60,
        required=False,
        label="Slice profile",
        help_text="Empty: whole GPUs. For instance 1g.10gb.",
    )
    max_runtime_seconds = DurationInSecondsField(
        initial=4 * 3600, label="Longest life", help_text=DURATION_EXAMPLES
    )
    command = forms.CharField(
        required=False, widget=forms.Textarea, label="Command", help_text="Shell text; for a job only."
    )


class HealthRuleForm(ServiceForm):
    code = forms.CharField(max_length=40)
    action = forms.ChoiceField(choices=HealthRule.Action.choices)
    repeats = forms.IntegerField()
    window_seconds = DurationInSecondsField(label="within", least=1, most=health_verbs.MAX_WINDOW_SECONDS)
    counts = forms.ChoiceField(choices=HealthRule.Counts.choices, required=False)


class NewHealthRuleForm(ServiceForm):
    code = forms.CharField(
        max_length=40, label="Code", widget=forms.TextInput(attrs={"placeholder": "xid:201"})
    )
    meaning = forms.CharField(max_length=200, label="What it is")
    action = forms.ChoiceField(label="Action")
    repeats = forms.IntegerField(initial=1, label="At how many")
    window_seconds = DurationInSecondsField(
        initial=health_verbs.DEFAULT_WINDOW_SECONDS,
        label="Within",
        least=1,
        most=health_verbs.MAX_WINDOW_SECONDS,
        help_text="Such as 24 h.",
    )
    counts = forms.ChoiceField(label="Counted", choices=HealthRule.Counts.choices)
    source = forms.CharField(
        max_length=200, required=False, label="Who recommends it", help_text="This organisation unless given."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["action"].choices = RULE_ACTION_CHOICES


class HealthRuleCodeForm(ServiceForm):
    code = forms.CharField(max_length=40)


RULE_ACTION_CHOICES = [(value, label.replace("Gpu", "GPU")) for value, label in HealthRule.Action.choices]


class HealthRuleFilterForm(forms.Form):
    find = forms.CharField(
        required=False,
        max_length=80,
        label="Find",
        widget=forms.TextInput(attrs={"placeholder": "Code or meaning"}),
    )
    does = forms.ChoiceField(
        required=False, label="Action", choices=[("", "Any action"), *RULE_ACTION_CHOICES]
    )
    only = forms.ChoiceField(
        required=False, label="Changed", choices=[("", "All rules"), ("changed", "Changed or added")]
    )

    def apply(self, also: str) -> list[HealthRule]:
        """The rules that the filters let through, and the one with the code ``also``; a filter that makes no sense is shown as an
        error and left out."""
        self.is_valid()
        given = self.cleaned_data
        changed = given.get("only") == "changed"
        return rule_reads.health_rules(
            find=given.get("find", ""), action=given.get("does", ""), changed=changed, also=also
        )

    def address(self) -> dict[str, str]:
        """What is chosen, as the address holds it."""
        return {name: value for name, value in self.cleaned_data.items() if value}


@sign_in_required
def organisation_settings(request: HttpRequest) -> HttpResponse:
    """The organisation and its pools."""
    organisation = Organisation.objects.first() or Organisation(name="")
    may_change = policy.may(request.user, "pool.change")
    initial = {
        "name": organisation.name,
        "time_zone": organisation.time_zone,
        "currency": organisation.currency,
    }
    form = OrganisationForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        done = form.carry_out(
            organisation_service.change_organisation,
            actor=current_user(request),
            now=timezone.now(),
            **form.cleaned_data,
        )
        if done is not None:
            messages.success(request, "Saved.")
            return redirect("settings")
    context = {
        "form": form,
        "pools": reads.pools(request.user),
        "may_change": may_change,
        "organisation_row": organisation,
        "may_see_recordings": policy.may(request.user, "recording.see"),
    }
    return render(request, "organisation/settings.html", context, status=400 if form.errors else 200)


@sign_in_required
def pool_settings(request: HttpRequest, slug: str) -> HttpResponse:
    """The limits of one pool, and how well its hosts have to keep workloads apart."""
    row = get_object_or_404(policy.visible_pools(request.user), slug=slug)
    if request.method == "POST" and "isolation" in request.POST:
        return _change_isolation(request, row)
    if request.method == "POST" and "stray_action" in request.POST:
        return _change_repair_policy(request, row)
    form = PoolLimitsForm(request.POST or None, initial={name: getattr(row, name) for name in LIMIT_LABELS})
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
        messages.success(request, "Saved. The engine uses it from its next cycle on.")
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
            messages.success(request, "Saved. The engine uses it from its next cycle on; what runs goes on.")
            return redirect("pool", row.slug)
    return _pool_page(
        request, row, PoolLimitsForm(initial={name: getattr(row, name) for name in LIMIT_LABELS}), form
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
            messages.success(request, "Saved. Its hosts are told at once.")
            return redirect("pool", row.slug)
    limits = PoolLimitsForm(initial={name: getattr(row, name) for name in LIMIT_LABELS})
    return _pool_page(request, row, limits, PoolIsolationForm(initial={"isolation": row.isolation}), form)


def _pool_page(
    request: HttpRequest,
    row: Pool,
    form: PoolLimitsForm,
    isolation: PoolIsolationForm,
    repair: RepairPolicyForm | None = None,
) -> HttpResponse:
    repair = repair or RepairPolicyForm(
        pool=row, initial={name: getattr(row, name) for name in REPAIR_POLICY}
    )
    context = {
        "repair": repair,
        "diagnostic_tool": repair_reads.diagnostic_tool(row),
        "pool": row,
        "form": form,
        "isolation": isolation,
        "waiting": reads.queue_leaders(row) if policy.sees_all_teams(request.user) else None,
        "hosts": [
            {
                "name": host.name,
                "has": host.get_isolation_level_display(),
                "lacks": host_reads.missing_isolation(host),
            }
            for host in row.hosts.select_related("pool").order_by("name")
        ],
        "may_change": policy.may(request.user, "pool.change"),
    }
    status = 400 if form.errors or isolation.errors or repair.errors else 200
    return render(request, "organisation/pool.html", context, status=status)


@sign_in_required
def pool_new(request: HttpRequest) -> HttpResponse:
    """A new pool; its limits start with the defaults."""
    policy.require(request.user, "pool.change")
    form = NewPoolForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        made = form.carry_out(
            verbs.create_pool, actor=current_user(request), now=timezone.now(), **form.cleaned_data
        )
        if isinstance(made, Pool):
            messages.success(
                request, f"{made.name} is there. Its limits have their defaults; next, add a host."
            )
            return redirect("pool", made.slug)
    return render(request, "organisation/pool_new.html", {"form": form}, status=400 if form.errors else 200)


@sign_in_required
def workload_templates(request: HttpRequest) -> HttpResponse:
    """What people launch in two clicks."""
    rows = Template.objects.order_by("position", "pk")
    return render(
        request,
        "organisation/templates.html",
        {"rows": rows, "may_change": policy.may(request.user, "template.change")},
    )


@sign_in_required
def edit_workload_template(request: HttpRequest, slug: str = "") -> HttpResponse:
    """Make a template or change one."""
    policy.require(request.user, "template.change")
    row = get_object_or_404(Template, slug=slug) if slug else None
    if row is not None and request.POST.get("verb") == "delete":
        templates.delete_template(actor=current_user(request), template=row, now=timezone.now())
        messages.success(request, f"{row.name} is gone. What was launched from it stays.")
        return redirect("templates")
    initial = {} if row is None else {name: getattr(row, name) for name in WorkloadTemplateForm.base_fields}
    form = WorkloadTemplateForm(request.POST or None, initial=initial)
    if (
        request.method == "POST"
        and form.is_valid()
        and (
            form.carry_out(
                templates.save_template,
                actor=current_user(request),
                template=row,
                now=timezone.now(),
                **form.cleaned_data,
            )
            is not None
        )
    ):
        messages.success(request, "Saved.")
        return redirect("templates")
    return render(
        request,
        "organisation/template.html",
        {"form": form, "template": row},
        status=400 if form.errors else 200,
    )


# What the page posts: its form and the service.
HEALTH_RULE_ACTIONS: dict[str, tuple[type[ServiceForm], Any]] = {
    "set": (HealthRuleForm, health_verbs.set_health_rule),
    "reset": (HealthRuleCodeForm, health_verbs.reset_health_rule),
    "remove": (HealthRuleCodeForm, health_verbs.remove_health_rule),
    "add": (NewHealthRuleForm, health_verbs.add_health_rule),
}


@sign_in_required
def health_rules(request: HttpRequest) -> HttpResponse:
    """The table that says what is done about hardware events. What is refused is told at its row, with what was typed."""
    refused: dict[str, Any] = {}
    filters = HealthRuleFilterForm(request.GET)
    touched = request.POST.get("code", "") if request.method == "POST" else request.GET.get("saved", "")
    rules = filters.apply(also=touched.replace("\0", ""))
    verb = request.POST.get("verb", "set")
    new = NewHealthRuleForm(request.POST if verb == "add" else None)
    if request.method == "POST":
        made_of, deed = HEALTH_RULE_ACTIONS.get(verb, HEALTH_RULE_ACTIONS["set"])
        form = new if verb == "add" else made_of(request.POST)
        done = (
            form.carry_out(deed, actor=current_user(request), now=timezone.now(), **form.cleaned_data)
            if form.is_valid()
            else None
        )
        if done is not None:
            if verb == "remove":
                messages.success(request, f"{done.code} has no rule any more: its events are noted.")
            # Back to its row: the table is long.
            query = urlencode({**filters.address(), "saved": done.code})
            return redirect(f"{reverse('health-rules')}?{query}#{slugify(done.code)}")
        errors = [str(e) for row in form.errors.values() for e in row]
        refused = {"code": "" if verb == "add" else request.POST.get("code", ""), "errors": errors}
        for error in () if verb == "add" else errors:
            messages.error(request, error)
    typed = refused.get("code") if verb == "set" else None
    context = {
        "refused": refused,
        "saved": request.GET.get("saved", ""),
        "most_repeats": health_verbs.MAX_REPEATS,
        "limits": f"1 to {health_verbs.MAX_REPEATS:,} events, within 1 s to {format_seconds(health_verbs.MAX_WINDOW_SECONDS)}",
        "rows": [
            _rule_as_posted(rule, request.POST)
            if rule.code == typed
            else (rule, format_seconds(rule.window_seconds))
            for rule in rules
        ],
        "filters": filters,
        "new": new,
        "actions": RULE_ACTION_CHOICES,
        "counts": HealthRule.Counts.choices,
        "may_change": policy.may(request.user, "health_rule.change"),
    }
    return render(request, "organisation/health_rules.html", context, status=400 if refused else 200)


def _rule_as_posted(rule: HealthRule, given: QueryDict) -> tuple[HealthRule, str]:
    """The row with what somebody typed in it, not saved."""
    for name in ("action", "repeats", "counts"):
        setattr(rule, name, given.get(name, ""))
    return rule, given.get("window_seconds", "")[:60]
