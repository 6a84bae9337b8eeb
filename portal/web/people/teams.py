"""Render the pages of teams: the list, and one team with members, projects and quotas."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import Membership, User
from portal.reads.people import organisation as reads
from portal.services.fleet.pool_work import change_home_limit
from portal.services.people import teams as team_service
from portal.web.page.access import current_user, posted_key, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import people_pages
from portal.wording.people import unix_texts
from scheduler.models import Project, Team

TEAM_ACTIONS = ("add_member", "remove_member", "create_project", "project_active", "rename", "home_limit")


class TeamForm(ServiceForm):
    name = forms.CharField(max_length=200, label="Name")
    tag = forms.CharField(
        max_length=10,
        required=False,
        label="Tag",
        help_text="Two or three letters, shown next to the team's colour.",
    )
    weight = forms.IntegerField(
        initial=1, label="Weight", help_text="The team's part in fair share among teams that borrow."
    )


class ProjectForm(ServiceForm):
    name = forms.CharField(max_length=200, label="New project")


class MemberForm(ServiceForm):
    user = forms.CharField(max_length=150, label="User name")
    role = forms.ChoiceField(choices=Membership.Role.choices, label="Role")


class HomeLimitForm(ServiceForm):
    home_limit_gib = forms.IntegerField(
        required=False, label="Largest size of a home", help_text=unix_texts.TEAM_HOME_LIMIT_HELP
    )


@sign_in_required
def teams(request: HttpRequest) -> HttpResponse:
    """List the teams that the viewer may see. Operators can create a team."""
    form = TeamForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        made = form.carry_out(
            team_service.create_team, actor=current_user(request), now=timezone.now(), **form.cleaned_data
        )
        if made is not None:
            messages.success(request, people_pages.TEAM_CREATED.format(name=made.name))
            return redirect("team", made.slug)
    context = {
        "rows": reads.teams(request.user),
        "form": form,
        "may_create": policy.may(request.user, "team.create"),
    }
    return render(request, "organisation/teams.html", context, status=400 if form.errors else 200)


@sign_in_required
def team(request: HttpRequest, slug: str) -> HttpResponse:
    """Show and change one team: members, projects, quotas."""
    page = _team_page_or_404(request, slug)
    removed = page["team"].removed_at is not None
    verb = request.POST.get("verb", "")
    forms_: dict[str, Any] = {
        "member_form": MemberForm(request.POST if verb == "add_member" else None),
        "project_form": ProjectForm(request.POST if verb == "create_project" else None),
        "home_limit_form": HomeLimitForm(
            request.POST if verb == "home_limit" else None,
            initial={"home_limit_gib": page["team"].home_limit_gib},
        ),
    }
    if request.method == "POST":
        if verb not in TEAM_ACTIONS:
            raise Http404
        if _change_team(request, page["team"], verb, forms_):
            return redirect("team", slug)
    page |= forms_ | {
        "may_request_budget": not removed and policy.may(request.user, "budget.request", page["team"]),
        "may_change": not removed and policy.may(request.user, "team.change", page["team"]),
        "may_limit_homes": not removed and policy.may(request.user, "pool.change"),
        "may_remove": not removed and policy.may(request.user, "team.remove", page["team"]),
    }
    failed = any(form.errors for form in forms_.values())
    return render(request, "organisation/team.html", page, status=400 if failed else 200)


def _team_page_or_404(request: HttpRequest, slug: str) -> dict[str, Any]:
    """Return the data of a team's page, or raise Http404.

    A removed team can be shown, but a POST to its page raises Http404, too.
    """
    page = reads.team_page(request.user, slug)
    if page is None or (page["team"].removed_at is not None and request.method == "POST"):
        raise Http404
    return page


def _change_team(request: HttpRequest, team: Team, verb: str, shown: dict[str, Any]) -> bool:
    """Carry out one action of the team page.

    Return False if the page must be shown again with the errors of a form.
    """
    given: dict[str, Any] = {"actor": request.user, "now": timezone.now()}
    if verb == "add_member":
        form = shown["member_form"]
        if not form.is_valid():
            return False
        person = User.objects.filter(username=form.cleaned_data["user"]).first()
        if person is None:
            form.add_error(
                "user",
                people_pages.USER_UNKNOWN.format(given=form.cleaned_data["user"]),
            )
            return False
        return (
            form.carry_out(
                team_service.add_member, team=team, user=person, role=form.cleaned_data["role"], **given
            )
            is not None
        )
    if verb == "home_limit":
        form = shown["home_limit_form"]
        return (
            form.is_valid()
            and form.carry_out(change_home_limit, team=team, **form.cleaned_data, **given) is not None
        )
    if verb == "create_project":
        form = shown["project_form"]
        return (
            form.is_valid()
            and form.carry_out(
                team_service.create_project, team=team, name=form.cleaned_data["name"], **given
            )
            is not None
        )
    form = ServiceForm(request.POST)
    form.is_valid()
    if verb == "remove_member":
        person = User.objects.filter(username=posted_key(request, "user")).first()
        if person is None:
            raise Http404
        form.carry_out(team_service.remove_member, team=team, user=person, **given)
    elif verb == "rename":
        form.carry_out(team_service.rename_team, team=team, name=request.POST.get("name", ""), **given)
    else:
        project = Project.objects.filter(team=team, slug=posted_key(request, "project")).first()
        if project is None:
            raise Http404
        form.carry_out(
            team_service.set_project_active,
            project=project,
            active=request.POST.get("active") == "1",
            **given,
        )
    for error in form.non_field_errors():
        messages.error(request, str(error))
    return True
