"""Render the page on which operators set the Unix identity of a person or service account."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.services.people.identity import unix_identities as verbs
from portal.web.page.access import current_user, get_visible_or_404, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import people_pages
from portal.wording.people import unix_texts
from scheduler.models import UnixIdentity


class UnixIdentityForm(ServiceForm):
    uid = forms.IntegerField(label=unix_texts.LABELS["uid"][0], help_text=unix_texts.LABELS["uid"][1])
    gid = forms.IntegerField(
        required=False, label=unix_texts.LABELS["gid"][0], help_text=unix_texts.LABELS["gid"][1]
    )
    groups = forms.CharField(
        required=False,
        max_length=3000,
        label=unix_texts.LABELS["groups"][0],
        help_text=unix_texts.LABELS["groups"][1],
    )
    name = forms.CharField(
        required=False,
        max_length=100,
        label=unix_texts.LABELS["name"][0],
        help_text=unix_texts.LABELS["name"][1],
    )
    home = forms.CharField(
        required=False,
        max_length=400,
        label=unix_texts.LABELS["home"][0],
        help_text=unix_texts.LABELS["home"][1],
    )
    why = forms.CharField(label=people_pages.REASON_LABEL, required=False, max_length=1000)

    def clean_groups(self) -> list[int]:
        """Return the numbers in the text."""
        words = self.cleaned_data["groups"].replace(",", " ").split()
        wrong = next((word for word in words if not word.isascii() or not word.isdigit()), None)
        if wrong is not None:
            raise forms.ValidationError(
                unix_texts.NOT_NUMBERS.format(field="groups", given=wrong[:60], most=verbs.MAX_GROUPS)
            )
        return [int(word[:12]) for word in words]


@sign_in_required
def unix_identity(request: HttpRequest, username: str) -> HttpResponse:
    """Show, set or remove the Unix identity of an account."""
    account = get_visible_or_404(policy.visible_users(request.user), "account", username=username)
    policy.require(request.user, "user.change")
    row = UnixIdentity.objects.filter(person=account).first()
    given: dict[str, Any] = {"actor": current_user(request), "user": account, "now": timezone.now()}
    if request.method == "POST" and "remove" in request.POST:
        form: ServiceForm = ServiceForm(request.POST)
        if form.is_valid() and form.carry_out(verbs.remove_unix_identity, **given) is not None:
            messages.success(request, unix_texts.REMOVED.format(name=username))
            return redirect("unix-identity", username)
        for error in form.non_field_errors():
            messages.error(request, str(error))
    present = {} if row is None else {**row.as_run_value(), "groups": ", ".join(map(str, row.groups))}
    form = UnixIdentityForm(request.POST if "uid" in request.POST else None, initial=present)
    if form.is_bound and form.is_valid():
        saved = form.carry_out(verbs.set_unix_identity, **given, **form.cleaned_data)
        if saved is not None:
            messages.success(request, unix_texts.SAVED.format(name=username))
            return redirect("unix-identity", username)
    context = {
        "account": account,
        "identity": row,
        "form": form,
        "title": unix_texts.TITLE.format(name=username),
    }
    status = 400 if form.errors else 200
    return render(request, "organisation/identity/unix_identity.html", context, status=status)
