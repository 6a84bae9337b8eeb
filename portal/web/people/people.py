"""Render the page of people and their roles."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.reads.people import organisation as reads
from portal.services.people import accounts
from portal.web.page.access import current_user, posted_key, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import people_pages


class PersonForm(ServiceForm):
    username = forms.CharField(max_length=200, label="User name")
    full_name = forms.CharField(max_length=200, required=False, label="Name")
    email = forms.CharField(max_length=300, label="E-mail")
    password = forms.CharField(widget=forms.PasswordInput, label="First password")
    operator = forms.BooleanField(
        required=False, label="Operator", help_text="Runs hosts and pools, decides approvals."
    )
    finance = forms.BooleanField(
        required=False, label="Finance", help_text="Sees all charges, closes months."
    )
    auditor = forms.BooleanField(
        required=False, label="Auditor", help_text="Sees everything, changes nothing."
    )


class RolesForm(ServiceForm):
    operator = forms.BooleanField(required=False)
    finance = forms.BooleanField(required=False)
    auditor = forms.BooleanField(required=False)
    active = forms.BooleanField(required=False)


@sign_in_required
def people(request: HttpRequest) -> HttpResponse:
    """List the people whom the viewer may see. Operators can add people and change their roles."""
    verb = request.POST.get("verb", "")
    form = PersonForm(request.POST if verb == "create" else None)
    if request.method == "POST":
        if verb == "create" and form.is_valid():
            made = form.carry_out(
                accounts.create_user, actor=current_user(request), now=timezone.now(), **form.cleaned_data
            )
            if made is not None:
                messages.success(request, people_pages.PERSON_CREATED.format(name=made.username))
                return redirect("people")
        elif verb == "roles":
            _change_roles(request)
            return redirect("people")
    context = {
        "rows": reads.people(request.user),
        "form": form,
        "may_change": policy.may(request.user, "user.change"),
    }
    return render(request, "organisation/people.html", context, status=400 if form.errors else 200)


def _change_roles(request: HttpRequest) -> None:
    person = reads.people(request.user).filter(username=posted_key(request, "user")).first()
    form = RolesForm(request.POST)
    if person is None or not form.is_valid():
        raise Http404
    if (
        form.carry_out(
            accounts.change_user,
            actor=current_user(request),
            user=person,
            now=timezone.now(),
            **form.cleaned_data,
        )
        is not None
    ):
        messages.success(request, people_pages.PERSON_CHANGED.format(name=person.username))
    for errors in form.errors.values():
        for error in errors:
            messages.error(request, str(error))
