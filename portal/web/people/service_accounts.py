"""Render the page of the service accounts of the viewer's teams, with their tokens."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.people import service_accounts as reads
from portal.services.people import service_accounts as verbs
from portal.web.page.access import current_user, posted_key, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.web.people.token_form import TokenForm, revoke_posted_token
from portal.wording.pages import people_pages
from scheduler.models import Team


class ServiceAccountForm(ServiceForm):
    name = forms.CharField(max_length=200, label="Name", help_text="Such as ci-vision.")
    team = forms.ModelChoiceField(Team.objects.none(), to_field_name="slug", label="Team")
    owner = forms.CharField(
        max_length=150, label="Owner", help_text="User name of a person of the team, who answers for it."
    )
    purpose = forms.CharField(max_length=200, required=False, label="Purpose")

    def __init__(self, *args: Any, viewer: User, **kwargs: Any) -> None:
        """Offer the teams in which the viewer may create service accounts."""
        super().__init__(*args, **kwargs)
        field = self.fields["team"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = reads.teams_with_new_accounts(viewer)


@sign_in_required
def service_accounts(request: HttpRequest) -> HttpResponse:
    """List service accounts. Their owners, leads of their teams and operators change them."""
    viewer, now, verb = current_user(request), timezone.now(), request.POST.get("verb", "")
    initial = {"owner": viewer.username}
    form = ServiceAccountForm(request.POST if verb == "create" else None, viewer=viewer, initial=initial)
    token_form = TokenForm(request.POST if verb == "token" else None)
    text = token_form.create(request, now, _posted_account(request)) if verb == "token" else ""
    if _changed(request, verb, form):
        return redirect("service-accounts")
    context = {
        "rows": reads.service_accounts(viewer),
        "form": form,
        "may_set_identity": policy.may(request.user, "user.change"),
        "token_form": TokenForm() if text else token_form,
        "may_create": reads.teams_with_new_accounts(viewer).exists(),
        "text": text,
        "now": now,
    }
    status = 400 if form.errors or token_form.errors else 200
    response = render(request, "organisation/service_accounts.html", context, status=status)
    response["Cache-Control"] = "no-store"
    return response


def _changed(request: HttpRequest, verb: str, form: ServiceAccountForm) -> bool:
    """Carry out the posted verb. Return True if the page is to be loaded again."""
    if verb == "revoke":
        revoke_posted_token(request, timezone.now())
    elif verb == "change":
        _change(request)
    elif verb == "create" and form.is_valid():
        _create(request, form)
    return verb in ("revoke", "change") or (verb == "create" and not form.errors)


def _posted_account(request: HttpRequest) -> User:
    rows = policy.visible_service_accounts(current_user(request))
    account = rows.select_related("service_team", "service_owner").filter(
        username=posted_key(request, "account")
    )
    found = account.first()
    if found is None:
        raise Http404
    return found


def _person(request: HttpRequest, form: ServiceForm, username: str) -> User | None:
    """Return the person whom the field ``owner`` names. Otherwise add an error to the form."""
    person = policy.visible_users(current_user(request)).filter(username=username).first()
    if person is None:
        form.add_error(form.field_for_argument("owner"), people_pages.USER_UNKNOWN.format(given=username))
    return person


def _create(request: HttpRequest, form: ServiceAccountForm) -> None:
    owner = _person(request, form, form.cleaned_data["owner"])
    if owner is None:
        return
    arguments = {**form.cleaned_data, "owner": owner}
    made = form.carry_out(
        verbs.create_service_account, actor=current_user(request), now=timezone.now(), **arguments
    )
    if made is not None:
        messages.success(request, people_pages.SERVICE_ACCOUNT_CREATED.format(name=made.username))


def _change(request: HttpRequest) -> None:
    """Close or open a posted account, or give it the posted owner. Errors are shown as messages."""
    account, form = _posted_account(request), ServiceForm(request.POST)
    arguments: dict[str, Any] = {}
    if "active" in request.POST:
        arguments["active"] = request.POST["active"] == "yes"
    if request.POST.get("owner"):
        arguments["owner"] = _person(request, form, posted_key(request, "owner"))
    if form.is_valid():
        form.carry_out(
            verbs.change_service_account,
            actor=current_user(request),
            account=account,
            now=timezone.now(),
            **arguments,
        )
    for errors in form.errors.values():
        for error in errors:
            messages.error(request, str(error))
    if not form.errors:
        messages.success(request, people_pages.SERVICE_ACCOUNT_CHANGED.format(name=account.username))
