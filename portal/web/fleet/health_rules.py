"""Render the page of health rules. A rule says which action follows a hardware event."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.text import slugify

from portal import policy
from portal.reads.fleet import health_rules as rule_reads
from portal.services.fleet import health_rules as health_verbs
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.duration_field import DurationInSecondsField, format_seconds
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import fleet_pages
from telemetry.models import HealthRule

RULE_ACTION_CHOICES = [(value, label.replace("Gpu", "GPU")) for value, label in HealthRule.Action.choices]


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
    meaning = forms.CharField(max_length=200, label="Meaning")
    action = forms.ChoiceField(label="Action")
    repeats = forms.IntegerField(initial=1, label="Number of events")
    window_seconds = DurationInSecondsField(
        initial=health_verbs.DEFAULT_WINDOW_SECONDS,
        label="Within",
        least=1,
        most=health_verbs.MAX_WINDOW_SECONDS,
        help_text="Such as 24 h.",
    )
    counts = forms.ChoiceField(label="Counted", choices=HealthRule.Counts.choices)
    source = forms.CharField(
        max_length=200, required=False, label="Recommended by", help_text="Empty: this organisation."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["action"].choices = RULE_ACTION_CHOICES


class HealthRuleCodeForm(ServiceForm):
    code = forms.CharField(max_length=40)


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
        """Return the rules that match the filters, and the rule with the code ``also``.

        An invalid filter shows an error on the page and does not filter.
        """
        self.is_valid()
        given = self.cleaned_data
        changed = given.get("only") == "changed"
        return rule_reads.health_rules(
            find=given.get("find", ""), action=given.get("does", ""), changed=changed, also=also
        )

    def address(self) -> dict[str, str]:
        """Return the chosen filters as query parameters."""
        return {name: value for name, value in self.cleaned_data.items() if value}


# Posted verbs, each with its form and its service.
HEALTH_RULE_ACTIONS: dict[str, tuple[type[ServiceForm], Any]] = {
    "set": (HealthRuleForm, health_verbs.set_health_rule),
    "reset": (HealthRuleCodeForm, health_verbs.reset_health_rule),
    "remove": (HealthRuleCodeForm, health_verbs.remove_health_rule),
    "add": (NewHealthRuleForm, health_verbs.add_health_rule),
}


# Not split: the function handles one request with four actions, which share the form and the errors.
@sign_in_required
def health_rules(request: HttpRequest) -> HttpResponse:
    """Show and change the rules. A rejected change appears in the row of its rule, with the typed values."""
    refused: dict[str, Any] = {}
    filters = HealthRuleFilterForm(request.GET)
    touched = request.POST.get("code", "") if request.method == "POST" else request.GET.get("saved", "")
    rules = filters.apply(also=touched.replace("\0", ""))
    verb = request.POST.get("verb", "set")
    new = NewHealthRuleForm(request.POST if verb == "add" else None)
    if request.method == "POST":
        form_class, service = HEALTH_RULE_ACTIONS.get(verb, HEALTH_RULE_ACTIONS["set"])
        form = new if verb == "add" else form_class(request.POST)
        done = (
            form.carry_out(service, actor=current_user(request), now=timezone.now(), **form.cleaned_data)
            if form.is_valid()
            else None
        )
        if done is not None:
            if verb == "remove":
                messages.success(request, fleet_pages.HEALTH_RULE_REMOVED.format(code=done.code))
            # Return to the row, because the table is long.
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
        "limits": f"1 to {health_verbs.MAX_REPEATS:,} events, "
        f"within 1 s to {format_seconds(health_verbs.MAX_WINDOW_SECONDS)}",
        "groups": _groups(
            [
                _rule_as_posted(rule, request.POST)
                if rule.code == typed
                else (rule, format_seconds(rule.window_seconds))
                for rule in rules
            ],
            is_filtered=bool(filters.address()),
            touched=touched,
        ),
        "filters": filters,
        "new": new,
        "actions": RULE_ACTION_CHOICES,
        "counts": HealthRule.Counts.choices,
        "may_change": policy.may(request.user, "health_rule.change"),
    }
    return render(request, "organisation/health_rules.html", context, status=400 if refused else 200)


def _groups(rows: list[tuple[HealthRule, str]], *, is_filtered: bool, touched: str) -> list[dict[str, Any]]:
    """Return the rules by kind of event. A group is open if the list is filtered or its rule was changed."""
    by_kind: dict[str, list[tuple[HealthRule, str]]] = {}
    for rule, window in rows:
        by_kind.setdefault(rule.code.partition(":")[0], []).append((rule, window))
    return [
        {
            "title": fleet_pages.RULE_GROUPS.get(kind, kind),
            "words": fleet_pages.rule_count(
                len(found), sum(1 for rule, _ in found if rule.origin != "default")
            ),
            "rows": found,
            "is_open": is_filtered or any(rule.code == touched for rule, _ in found),
        }
        for kind, found in by_kind.items()
    ]


def _rule_as_posted(rule: HealthRule, given: QueryDict) -> tuple[HealthRule, str]:
    """Set the typed values on the rule without saving it. Return the rule and the typed time window."""
    for name in ("action", "repeats", "counts"):
        setattr(rule, name, given.get(name, ""))
    return rule, given.get("window_seconds", "")[:60]
