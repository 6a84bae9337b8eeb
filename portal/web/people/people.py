"""Render the page of people and their roles."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from portal import policy
from portal.reads.people import organisation as reads
from portal.services.people import accounts
from portal.services.people.password_links import password_link
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.web.people.person import password_link_page
from portal.wording.pages import people_pages


class PersonForm(ServiceForm):
    username = forms.CharField(max_length=200, label="User name")
    full_name = forms.CharField(max_length=200, required=False, label="Name")
    email = forms.CharField(max_length=300, label="E-mail")
    operator = forms.BooleanField(
        required=False, label="Operator", help_text="Runs hosts and pools, decides approvals."
    )
    finance = forms.BooleanField(
        required=False, label="Finance", help_text="Sees all charges, closes months."
    )
    auditor = forms.BooleanField(
        required=False, label="Auditor", help_text="Sees everything, changes nothing."
    )


@sign_in_required
def people(request: HttpRequest) -> HttpResponse:
    """List the people whom the viewer may see. Operators can add people.

    The page of a new account shows the one-time link with which the person sets the first password.
    """
    form = PersonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        made = form.carry_out(
            accounts.create_user, actor=current_user(request), now=timezone.now(), **form.cleaned_data
        )
        if made is not None:
            messages.success(request, people_pages.PERSON_CREATED.format(name=made.username))
            return password_link_page(request, made, password_link(made))
    context = {
        "rows": reads.people(request.user),
        "form": form,
        "may_change": policy.may(request.user, "user.change"),
    }
    return render(request, "organisation/people.html", context, status=400 if form.errors else 200)
