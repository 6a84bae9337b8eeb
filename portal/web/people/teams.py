"""Teams, people, and the first minutes of a new installation."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import Membership, Organisation, User
from portal.reads.people import organisation as reads
from portal.services.people import accounts
from portal.services.people import teams as teams_service
from portal.web.page.access import current_user, posted_key, sign_in_required
from portal.web.page.service_form import ServiceForm
from scheduler.models import Host, Pool, Project, Quota, Team, Workload

LOGIN_BACKEND = "allauth.account.auth_backends.AuthenticationBackend"  # the one that config.settings uses


class TeamForm(ServiceForm):
    name = forms.CharField(max_length=200, label="Name")
    tag = forms.CharField(
        max_length=10, required=False, label="Tag", help_text="Two or three letters, shown beside its colour."
    )
    weight = forms.IntegerField(
        initial=1, label="Weight", help_text="Its part in fair share among teams that borrow."
    )


class ProjectForm(ServiceForm):
    name = forms.CharField(max_length=200, label="New project")


class MemberForm(ServiceForm):
    user = forms.CharField(max_length=150, label="User name")
    role = forms.ChoiceField(choices=Membership.Role.choices, label="Role")


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


class FirstRunForm(ServiceForm):
    organisation = forms.CharField(max_length=200, label="Organisation")
    time_zone = forms.CharField(
        max_length=60,
        initial="UTC",
        label="Time zone",
        help_text="For people who chose none, such as Europe/Berlin.",
    )
    currency = forms.CharField(
        max_length=10, initial="EUR", label="Currency", help_text="Three letters. Sums are never converted."
    )
    username = forms.CharField(
        max_length=200, label="Your user name", help_text="You will be its first operator."
    )
    email = forms.CharField(max_length=300, label="E-mail")
    password = forms.CharField(widget=forms.PasswordInput, label="Password")


@sign_in_required
def teams(request: HttpRequest) -> HttpResponse:
    """Every team the viewer may see; operators add one."""
    form = TeamForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        made = form.carry_out(
            teams_service.create_team, actor=current_user(request), now=timezone.now(), **form.cleaned_data
        )
        if made is not None:
            messages.success(request, f"{made.name} is there. Next: its people, its projects and its quota.")
            return redirect("team", made.slug)
    context = {
        "rows": reads.teams(request.user),
        "form": form,
        "may_create": policy.may(request.user, "team.create"),
    }
    return render(request, "organisation/teams.html", context, status=400 if form.errors else 200)


TEAM_ACTIONS = ("add_member", "remove_member", "create_project", "project_active", "rename")


@sign_in_required
def team(request: HttpRequest, slug: str) -> HttpResponse:
    """One team: people, projects, quotas."""
    page = reads.team_page(request.user, slug)
    if page is None:
        raise Http404
    verb = request.POST.get("verb", "")
    forms_: dict[str, Any] = {
        "member_form": MemberForm(request.POST if verb == "add_member" else None),
        "project_form": ProjectForm(request.POST if verb == "create_project" else None),
    }
    if request.method == "POST":
        if verb not in TEAM_ACTIONS:
            raise Http404
        if _change_team(request, page["team"], verb, forms_):
            return redirect("team", slug)
    page |= forms_ | {"may_change": policy.may(request.user, "team.change", page["team"])}
    failed = any(form.errors for form in forms_.values())
    return render(request, "organisation/team.html", page, status=400 if failed else 200)


def _change_team(request: HttpRequest, team: Team, verb: str, shown: dict[str, Any]) -> bool:
    """Carry out one verb of the team page; True when it is done."""
    given: dict[str, Any] = {"actor": request.user, "now": timezone.now()}
    if verb == "add_member":
        form = shown["member_form"]
        if not form.is_valid():
            return False
        person = User.objects.filter(username=form.cleaned_data["user"]).first()
        if person is None:
            form.add_error(
                "user",
                f"user is {form.cleaned_data['user']!a:.60}; allowed: the user name of somebody with an account.",
            )
            return False
        return (
            form.carry_out(
                teams_service.add_member, team=team, user=person, role=form.cleaned_data["role"], **given
            )
            is not None
        )
    if verb == "create_project":
        form = shown["project_form"]
        return (
            form.is_valid()
            and form.carry_out(
                teams_service.create_project, team=team, name=form.cleaned_data["name"], **given
            )
            is not None
        )
    form = ServiceForm(request.POST)
    form.is_valid()
    if verb == "remove_member":
        person = User.objects.filter(username=posted_key(request, "user")).first()
        if person is None:
            raise Http404
        form.carry_out(teams_service.remove_member, team=team, user=person, **given)
    elif verb == "rename":
        form.carry_out(teams_service.rename_team, team=team, name=request.POST.get("name", ""), **given)
    else:
        project = Project.objects.filter(team=team, slug=posted_key(request, "project")).first()
        if project is None:
            raise Http404
        form.carry_out(
            teams_service.set_project_active,
            project=project,
            active=request.POST.get("active") == "1",
            **given,
        )
    for error in form.non_field_errors():
        messages.error(request, str(error))
    return True


@sign_in_required
def people(request: HttpRequest) -> HttpResponse:
    """Everybody the viewer may see; operators add people and give roles."""
    verb = request.POST.get("verb", "")
    form = PersonForm(request.POST if verb == "create" else None)
    if request.method == "POST":
        if verb == "create" and form.is_valid():
            made = form.carry_out(
                accounts.create_user, actor=current_user(request), now=timezone.now(), **form.cleaned_data
            )
            if made is not None:
                messages.success(request, f"{made.username} can sign in now. Put them into a team next.")
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
        messages.success(request, f"{person.username} is changed.")
    for errors in form.errors.values():
        for error in errors:
            messages.error(request, str(error))


@login_not_required
def first_run_wizard(request: HttpRequest) -> HttpResponse:
    """The wizard: the organisation and its first operator, then host, team, quota and notebook, each shown as done or next."""
    now = timezone.now()
    if not User.objects.exists():
        form = FirstRunForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            user = form.carry_out(accounts.first_run, now=now, **form.cleaned_data)
            if user is not None:
                login(request, user, backend=LOGIN_BACKEND)
                return redirect("first-run")
        return render(
            request, "organisation/first_run_account.html", {"form": form}, status=400 if form.errors else 200
        )
    if not request.user.is_authenticated:
        return redirect("account_login")
    if not policy.may(request.user, "host.change"):
        raise PermissionDenied("The first steps are an operator's.")
    return render(
        request,
        "organisation/first_run.html",
        {"organisation": Organisation.objects.first(), "steps": setup_steps()},
    )


def setup_steps() -> list[dict[str, Any]]:
    """What a new installation needs, in order, each with whether it is done."""
    joined = Host.objects.exclude(credential_hash="").exists()
    return [
        {
            "title": "Make a pool",
            "done": Pool.objects.exists(),
            "url": "pool-new",
            "action": "Make a pool",
            "text": "Hosts whose GPUs are shared by one set of rules. One for everybody is enough to begin with.",
        },
        {
            "title": "Add a host",
            "done": joined,
            "url": "host-add",
            "action": "Add a host",
            "text": "One command, copied to the machine, starts its agent. Its GPUs appear here by themselves.",
        },
        {
            "title": "Create a team",
            "done": Team.objects.exists(),
            "url": "teams",
            "action": "Create a team",
            "text": "People ask for GPUs as members of a team, for one of its projects.",
        },
        {
            "title": "Give it a quota",
            "done": Quota.objects.exists(),
            "url": "teams",
            "action": "Choose a team",
            "text": "What a team is guaranteed, and how much it may borrow of what others leave free.",
        },
        {
            "title": "Launch a notebook",
            "done": Workload.objects.exists(),
            "url": "notebooks",
            "action": "Launch a notebook",
            "text": "JupyterLab on a GPU of the pool, in two clicks.",
        },
    ]
