"""Render the list of alerts and the alert rules of a pool."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from portal import policy
from portal.errors import Invalid
from portal.input_checks import display_value
from portal.reads.fleet import alerts as reads
from portal.services.fleet import alerts as verbs
from portal.web.page.access import (
    address_checks,
    current_user,
    get_visible_or_404,
    run_and_redirect,
    sign_in_required,
)
from portal.web.page.pagination import PAGE_PARAMETER, paginate
from portal.web.page.service_form import ServiceForm
from portal.wording import alert_texts
from portal.wording.pages.money import money_pages
from scheduler.models import Pool
from telemetry.core.alerts.judgement import AlertState
from telemetry.core.alerts.kinds import MOMENTARY_KINDS, AlertKind
from telemetry.models import Alert

KIND_CHOICES = [(kind.value, alert_texts.alert_label(kind)) for kind in AlertKind]
STATE_CHOICES = [
    ("", "Open"),
    *((s.value, alert_texts.ALERT_STATE_LABELS[s]) for s in AlertState),
    ("all", "All"),
]
# The marks of states that other pages have too.
STATE_MARKS = {"firing": "failed", "acknowledged": "running", "snoozed": "idle", "ended": "ended"}


class AlertFilterForm(forms.Form):
    kind = forms.ChoiceField(required=False, label="Kind", choices=[("", "Any kind"), *KIND_CHOICES])
    pool = forms.ChoiceField(required=False, label="Pool")
    state = forms.ChoiceField(required=False, label="State", choices=STATE_CHOICES)

    def __init__(self, data: QueryDict, pools: list[Pool]) -> None:
        super().__init__(data)
        choices = [("", "Any pool"), *((pool.slug, pool.name) for pool in pools)]
        self.fields["pool"].choices = choices  # type: ignore[attr-defined]

    def filters(self) -> dict[str, str]:
        """Return the filters of the address. Raises Invalid for an unknown parameter or value."""
        allowed = (*self.fields, PAGE_PARAMETER)
        unknown = next((name for name in self.data if name not in allowed), None)
        if unknown is not None:
            given = display_value(unknown)
            text = money_pages.PARAMETER_UNKNOWN.format(given=given, allowed=", ".join(allowed))
            raise Invalid({unknown[:30]: text})
        if not self.is_valid():
            raise Invalid({name: str(errors[0]) for name, errors in self.errors.items()})
        return {name: value for name, value in self.cleaned_data.items() if value}


class AlertRuleForm(ServiceForm):
    """The rule of one kind of alert. Only the fields that were changed are sent to the service."""

    enabled = forms.BooleanField(required=False)
    begin = forms.FloatField()
    begin_minutes = forms.IntegerField(required=False)
    end = forms.FloatField()
    end_minutes = forms.IntegerField(required=False)
    stop_work = forms.BooleanField(required=False)
    notice_minutes = forms.IntegerField(required=False)
    postpone_times = forms.IntegerField(required=False)
    postpone_minutes = forms.IntegerField(required=False)

    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from the current rule. An empty field keeps its value."""
        changed = {name: self.cleaned_data[name] for name in self.changed_data}
        return {name: value for name, value in changed.items() if value is not None}


@sign_in_required
def alerts(request: HttpRequest) -> HttpResponse:
    """List alerts. The filters are in the address."""
    user = current_user(request)
    filters = AlertFilterForm(request.GET, list(policy.visible_pools(user).order_by("name")))
    with address_checks():
        given = filters.filters()
    page = paginate(request, reads.alerts(user, **given))
    context = {
        "filters": filters,
        "filtered": bool(given),
        "page": page,
        "rows": [_row(alert) for alert in page.object_list],
        "may_handle": policy.may(user, "alert.handle"),
        "may_change_rules": policy.may(user, "alert_rule.change"),
        "sees_all": policy.sees_all_teams(user),
        "pools": policy.visible_pools(user).order_by("name"),
        "snoozes": alert_texts.SNOOZE_CHOICES,
        "now": timezone.now(),
    }
    return render(request, "manage/alerts.html", context)


def _row(alert: Alert) -> dict[str, Any]:
    row = reads.alert_row(alert)
    return {
        "alert": alert,
        "row": row,
        "mark": STATE_MARKS[alert.state],
        "state": alert_texts.ALERT_STATE_LABELS[alert.state],
        "url": _subject_url(alert),
        "is_open": alert.ended_at is None,
    }


def _subject_url(alert: Alert) -> str:
    if alert.workload is not None:
        name = "notebook" if alert.workload.kind == "notebook" else "job"
        return reverse(name, args=[alert.workload.public_id])
    if alert.reservation is not None:
        return reverse("reservation", args=[alert.reservation.public_id])
    if alert.host is not None:
        return reverse("host", args=[alert.host.name])
    return f"{reverse('queue')}?pool={alert.pool.slug}"


@require_POST
@sign_in_required
def alert_change(request: HttpRequest, public_id: UUID) -> HttpResponseBase:
    """Acknowledge or snooze an alert, then return to the list."""
    user = current_user(request)
    alert = get_visible_or_404(policy.visible_alerts(user), "alert", public_id=public_id)
    to = reverse("alerts")
    given: dict[str, Any] = {"actor": user, "alert": alert, "now": timezone.now()}
    if request.POST.get("verb") == "acknowledge":
        done = alert_texts.ALERT_ACKNOWLEDGED
        return run_and_redirect(request, lambda: verbs.acknowledge_alert(**given), done=done, to=to)
    text = request.POST.get("minutes", "")
    minutes: Any = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else text
    done = alert_texts.ALERT_SNOOZED
    return run_and_redirect(request, lambda: verbs.snooze_alert(**given, minutes=minutes), done=done, to=to)


@sign_in_required
def pool_alerts(request: HttpRequest, slug: str) -> HttpResponse:
    """Show and change the alert rules of a pool, one form for each kind."""
    user = current_user(request)
    pool = get_visible_or_404(policy.visible_pools(user), "pool", slug=slug)
    posted: AlertRuleForm | None = None
    kind = request.POST.get("kind", "")
    if request.method == "POST":
        rules = {rule.kind: rule for rule in reads.pool_alert_rules(pool)}
        posted = AlertRuleForm(request.POST, initial=vars(rules[kind].thresholds) if kind in rules else {})
        if _carry_out(request, posted, pool, kind):
            return redirect(f"{reverse('pool-alerts', args=[slug])}#{kind}")
    context = {
        "pool": pool,
        "rows": [
            _rule_row(rule, posted if rule.kind == kind else None) for rule in reads.pool_alert_rules(pool)
        ],
        "may_change": policy.may(user, "alert_rule.change"),
        "other_errors": posted if posted is not None and kind not in ALL_KINDS else None,
    }
    return render(request, "organisation/pool_alerts.html", context, status=400 if posted else 200)


ALL_KINDS = frozenset(kind.value for kind in AlertKind)


def _carry_out(request: HttpRequest, form: AlertRuleForm, pool: Pool, kind: str) -> bool:
    given: dict[str, Any] = {
        "actor": current_user(request),
        "pool": pool,
        "kind": kind,
        "now": timezone.now(),
    }
    if request.POST.get("verb") == "reset":
        if not form.is_valid() or form.carry_out(verbs.reset_alert_rule, **given) is None:
            return False
        messages.success(request, alert_texts.RULE_RESET)
        return True
    if not form.is_valid() or form.carry_out(verbs.set_alert_rule, **given, **form.changes()) is None:
        return False
    messages.success(request, alert_texts.RULE_SAVED)
    return True


def _rule_row(rule: reads.PoolAlertRule, posted: AlertRuleForm | None) -> dict[str, Any]:
    form = posted or AlertRuleForm(initial=vars(rule.thresholds))
    label, meaning = alert_texts.ALERT_KIND_LABELS[rule.kind]
    return {
        "rule": rule,
        "label": label,
        "meaning": meaning,
        "unit": alert_texts.UNIT_LABELS[rule.definition.unit],
        "has_window": rule.definition.kind not in MOMENTARY_KINDS,
        "values": {name: form[name].value() for name in form.fields},
        "defaults": rule.definition.defaults,
        "errors": [str(error) for errors in form.errors.values() for error in errors] if posted else [],
    }
