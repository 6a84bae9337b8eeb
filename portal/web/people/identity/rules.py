"""Render the table of rules that turn claims into teams and roles, with a preview of each change."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import ClaimRule
from portal.reads.people.identity import claim_rules as visible_rules
from portal.services.people.accounts import ROLES
from portal.services.people.identity import rules as verbs
from portal.sign_in.oidc.providers import all_providers
from portal.web.page.access import current_user, get_visible_or_404, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import people_pages
from scheduler.models import Team


class RuleForm(ServiceForm):
    provider = forms.ChoiceField(label="Provider")
    claim = forms.CharField(max_length=80, label="Claim", initial="groups")
    value = forms.CharField(max_length=200, label="Value")
    team = forms.ChoiceField(required=False, label="Team")
    lead = forms.BooleanField(required=False, label="Lead of the team")
    role = forms.ChoiceField(required=False, label="Role in the organisation")
    why = forms.CharField(label=people_pages.REASON_LABEL, required=False, max_length=1000)

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        teams = [(team.slug, team.name) for team in Team.objects.order_by("name")]
        choices = {
            "provider": [(each.slug, each.name) for each in all_providers()],
            "team": [("", "none"), *teams],
            "role": [("", "none"), *((role, role) for role in ROLES)],
        }
        for name, offered in choices.items():
            self.fields[name].choices = offered  # type: ignore[attr-defined]


@sign_in_required
def claim_rules(request: HttpRequest) -> HttpResponse:
    """List the rules. On POST, show the effect of one more rule; with ``confirmed``, add it."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "identity.change" if request.method == "POST" else "identity.see")
    form = RuleForm(request.POST or None)
    effect = None
    if request.method == "POST" and form.is_valid():
        given = dict(form.cleaned_data)
        if request.POST.get("confirmed"):
            if form.carry_out(verbs.create_rule, actor=user, now=now, **given) is not None:
                messages.success(request, people_pages.RULE_ADDED)
                return redirect("claim-rules")
        else:
            given.pop("why")
            effect = form.carry_out(verbs.preview_rules, actor=user, now=now, add=given)
    context = {
        "rules": visible_rules(user),
        "form": form,
        "effect": effect,
        "may_change": policy.may(user, "identity.change"),
    }
    return render(request, "organisation/identity/rules.html", context, status=400 if form.errors else 200)


@sign_in_required
def claim_rule_remove(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the effect of removing a rule. On POST, remove it."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "identity.change")
    rule = get_visible_or_404(ClaimRule.objects.all(), "rule", pk=pk)
    if request.method == "POST":
        verbs.remove_rule(actor=user, rule=rule, now=now)
        messages.success(request, people_pages.RULE_REMOVED)
        return redirect("claim-rules")
    effect = verbs.preview_rules(actor=user, now=now, remove=pk)
    return render(request, "organisation/identity/rule_remove.html", {"rule": rule, "effect": effect})
