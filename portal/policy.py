"""Who may do and see what. Deny by default: a rule that is not written here refuses.

Roles of the whole organisation (operator, finance, auditor) are flags of the user; member and lead are roles in a team. An
auditor sees everything and changes nothing, whatever else that person is. ``may`` answers one question, ``require`` refuses
with a sentence; the ``visible_…`` querysets are where every list and every lookup starts, so what may not be seen is not found.
"""

from __future__ import annotations

from typing import Any

import rules
from django.contrib.auth.models import AnonymousUser
from django.db.models import CharField, F, Func, Q, QuerySet, Value

from portal.errors import NotAllowed
from portal.models import ApiToken, AuditEvent, Membership, Notification, Submission, User
from scheduler.models import (
    Gpu,
    Host,
    JobArray,
    Pool,
    Project,
    Quota,
    Reservation,
    Series,
    Team,
    Volume,
    Workload,
)
from telemetry.models import Budget, Charge, Statement

Viewer = User | AnonymousUser


# -- who somebody is ---------------------------------------------------------------------------------------------------


def team_id_of(thing: Any) -> int | None:
    """The team a row belongs to: of a team, project, quota, submission, workload or reservation; None for other things."""
    if isinstance(thing, Team):
        return int(thing.pk)
    if isinstance(thing, Project | Quota | Submission):
        return int(thing.team_id)
    if isinstance(thing, Workload | Reservation | Series | JobArray):
        return int(thing.project.team_id)
    if isinstance(thing, Pool):
        return thing.team_id
    return None


def _id_of(user: Viewer) -> int:
    """The id of somebody with an active account; 0, which nobody has, for everybody else."""
    return user.pk if isinstance(user, User) and user.is_active else 0


def role_in(user: Viewer, team_id: int | None) -> str:
    """The user's role in a team: member, lead or empty."""
    if team_id is None or not user.is_authenticated:
        return ""
    return Membership.objects.filter(user=user, team_id=team_id).values_list("role", flat=True).first() or ""


def _active(user: Viewer) -> bool:
    return bool(user.is_authenticated and user.is_active)


def _changes_things(user: Viewer) -> bool:
    return isinstance(user, User) and user.is_active and not user.auditor


def _operator(user: Viewer) -> bool:
    return isinstance(user, User) and user.operator


def _finance(user: Viewer) -> bool:
    return isinstance(user, User) and user.finance


def _auditor(user: Viewer) -> bool:
    return isinstance(user, User) and user.auditor


def _member(user: Viewer, thing: Any = None) -> bool:
    return role_in(user, team_id_of(thing)) != ""


def _lead(user: Viewer, thing: Any = None) -> bool:
    return role_in(user, team_id_of(thing)) == Membership.Role.LEAD


def _owner(user: Viewer, thing: Any = None) -> bool:
    owner = (
        getattr(thing, "owner_id", None)
        or getattr(thing, "author_id", None)
        or getattr(thing, "user_id", None)
    )
    return owner is not None and owner == user.pk


def _decides_membership(user: Viewer, thing: Any = None) -> bool:
    return isinstance(thing, Submission) and thing.kind == Submission.Kind.MEMBERSHIP and _lead(user, thing)


is_active = rules.predicate(_active)
changes_things = rules.predicate(_changes_things)
is_operator = rules.predicate(_operator)
is_finance = rules.predicate(_finance)
is_auditor = rules.predicate(_auditor)
is_member = rules.predicate(_member)
is_lead = rules.predicate(_lead)
is_owner = rules.predicate(_owner)
decides_membership = rules.predicate(_decides_membership)


# -- what may be done --------------------------------------------------------------------------------------------------

# Action: (who, the sentence for everybody else). ``thing`` of the question stands in brackets.
ACTIONS: dict[str, tuple[Any, str]] = {
    # [Project]
    "workload.launch": (
        changes_things & is_member,
        "Only members of the project's team may start work in it.",
    ),
    "reservation.request": (
        changes_things & is_member,
        "Only members of the project's team may reserve for it.",
    ),
    # [Workload]
    "workload.change": (
        changes_things & ((is_owner & is_member) | is_lead | is_operator),
        "Only its owner, a lead of its team or an operator may change this workload.",
    ),
    "workload.relaunch": (
        changes_things & is_member,
        "Only members of its team may launch this workload again.",
    ),
    "workload.open": (changes_things & is_owner & is_member, "Only its owner may open this."),
    "workload.logs": (
        is_active & (is_member | is_operator | is_auditor),
        "Only its team, operators and auditors may read these logs.",
    ),
    # [Reservation]
    "reservation.change": (
        changes_things & ((is_owner & is_member) | is_lead | is_operator),
        "Only its owner, a lead of its team or an operator may change this reservation.",
    ),
    # [Team]
    "quota.request": (
        changes_things & (is_lead | is_operator),
        "Only a lead of the team or an operator may ask for another quota.",
    ),
    "team.change": (
        changes_things & (is_lead | is_operator),
        "Only a lead of the team or an operator may change it.",
    ),
    "team.join": (changes_things, "Only people with an active account may ask to join a team."),
    # [Submission]
    "submission.decide": (
        changes_things & (is_operator | decides_membership),
        "Only an operator may decide this.",
    ),
    "submission.withdraw": (
        changes_things & (is_owner | is_lead),
        "Only its author or a lead of the team may withdraw this.",
    ),
    # no thing
    "approval.see": (
        is_active & (is_operator | is_auditor),
        "Only operators and auditors see what waits for approval.",
    ),
    "recording.see": (
        is_active & (is_operator | is_auditor),
        "Only operators and auditors see what the engine planned on: it names every team's work.",
    ),
    "host.change": (changes_things & is_operator, "Only an operator may change hosts."),
    "pool.change": (changes_things & is_operator, "Only an operator may change pools."),
    "team.create": (changes_things & is_operator, "Only an operator may create a team."),
    "user.change": (changes_things & is_operator, "Only an operator may create or change accounts."),
    "template.change": (changes_things & is_operator, "Only an operator may change templates."),
    "health_rule.change": (
        changes_things & is_operator,
        "Only an operator may change what is done about hardware events.",
    ),
    "price.change": (changes_things & is_finance, "Only finance may change prices."),
    "budget.change": (changes_things & is_finance, "Only finance may change budgets."),
    "cost_centre.change": (changes_things & is_finance, "Only finance may change cost centres."),
    "statement.close": (changes_things & is_finance, "Only finance may close a month."),
    "charges.see_all": (
        is_active & (is_finance | is_auditor),
        "Only finance and auditors see every team's charges.",
    ),
    "audit.see_all": (
        is_active & (is_operator | is_auditor),
        "Only operators and auditors see every change.",
    ),
    "own.change": (is_active, "Sign in first."),
    # [ApiToken]
    "token.revoke": (
        is_active & (is_owner | is_operator),
        "Only its owner or an operator may revoke this token.",
    ),
}

RULES = rules.RuleSet({name: rule for name, (rule, _) in ACTIONS.items()})


def may(user: Viewer, action: str, thing: Any = None) -> bool:
    """Whether ``user`` may do ``action`` (a name in ACTIONS) to ``thing``. An unknown action raises KeyError."""
    if action not in ACTIONS:
        raise KeyError(action)
    return bool(RULES.test_rule(action, user, thing))


def require(user: Viewer, action: str, thing: Any = None) -> None:
    """Raise NotAllowed with the action's sentence unless the user may."""
    if not may(user, action, thing):
        raise NotAllowed(ACTIONS[action][1])


# -- what may be seen --------------------------------------------------------------------------------------------------


def sees_all_teams(user: Viewer) -> bool:
    """Operators and auditors see the work of every team."""
    return _active(user) and (_operator(user) or _auditor(user))


def sees_all_charges(user: Viewer) -> bool:
    """Finance and auditors see the charges of every team."""
    return may(user, "charges.see_all")


def sees_owner_cost(user: Viewer) -> bool:
    """What GPUs cost their owner is for finance, operators and auditors; everybody else sees prices."""
    return sees_all_charges(user) or sees_all_teams(user)


def my_team_ids(user: Viewer, role: str = "") -> QuerySet[Membership, Any]:
    """Ids of the user's teams, as a subquery; with ``role`` only those where the user has it."""
    mine = Membership.objects.filter(user_id=_id_of(user))
    return (mine.filter(role=role) if role else mine).values("team_id")


def visible_teams(user: Viewer) -> QuerySet[Team]:
    """Own teams; all of them for operators, auditors and finance."""
    if sees_all_teams(user) or sees_all_charges(user):
        return Team.objects.all()
    return Team.objects.filter(pk__in=my_team_ids(user))


def named_teams(user: Viewer) -> QuerySet[Team]:
    """Teams whose name the user may read in a sentence: the visible ones, and those with a quota in a visible pool."""
    sharing = Quota.objects.filter(pool__in=visible_pools(user)).values("team")
    return Team.objects.filter(Q(pk__in=visible_teams(user).values("pk")) | Q(pk__in=sharing))


def visible_projects(user: Viewer) -> QuerySet[Project]:
    """Projects of the visible teams."""
    if sees_all_teams(user) or sees_all_charges(user):
        return Project.objects.all()
    return Project.objects.filter(team__in=my_team_ids(user))


def launchable_projects(user: Viewer) -> QuerySet[Project]:
    """Active projects in which the user may start work."""
    if not _changes_things(user):
        return Project.objects.none()
    return Project.objects.filter(active=True, team__in=my_team_ids(user))


def visible_pools(user: Viewer) -> QuerySet[Pool]:
    """Dynamic pools and the static pools of own teams; all for operators, auditors and finance."""
    if not _active(user):
        return Pool.objects.none()
    if sees_all_teams(user) or sees_all_charges(user):
        return Pool.objects.all()
    return Pool.objects.filter(Q(team__isnull=True) | Q(team__in=my_team_ids(user)))


def visible_hosts(user: Viewer) -> QuerySet[Host]:
    """Hosts of the visible pools. Who holds their GPUs is another question: see visible_workloads."""
    return Host.objects.filter(pool__in=visible_pools(user))


def visible_gpus(user: Viewer) -> QuerySet[Gpu]:
    """GPUs of the visible hosts."""
    return Gpu.objects.filter(host__pool__in=visible_pools(user))


def visible_quotas(user: Viewer) -> QuerySet[Quota]:
    """Quotas of the visible teams."""
    return Quota.objects.filter(team__in=visible_teams(user))


def visible_workloads(user: Viewer) -> QuerySet[Workload]:
    """Work of own teams; of all teams for operators and auditors."""
    if sees_all_teams(user):
        return Workload.objects.all()
    return Workload.objects.filter(project__team__in=my_team_ids(user))


def visible_arrays(user: Viewer) -> QuerySet[JobArray]:
    """Arrays of own teams; of all teams for operators and auditors."""
    if sees_all_teams(user):
        return JobArray.objects.all()
    return JobArray.objects.filter(project__team__in=my_team_ids(user))


def visible_volumes(user: Viewer) -> QuerySet[Volume]:
    """One's own home and those of the people of teams one leads; all for operators and auditors. Names and sizes, never files."""
    if sees_all_teams(user):
        return Volume.objects.all()
    if not _active(user):
        return Volume.objects.none()
    led = Membership.objects.filter(team__in=my_team_ids(user, Membership.Role.LEAD))
    # A person's further homes, in other teams, are called NAME~NUMBER; ~ is in no name of a user.
    person = Func(F("name"), Value("~"), Value(1), function="split_part", output_field=CharField())
    volumes = Volume.objects.alias(whose=person)
    return volumes.filter(Q(whose=user.get_username()) | Q(whose__in=led.values("user__username")))


def visible_reservations(user: Viewer) -> QuerySet[Reservation]:
    """Reservations of own teams; of all teams for operators and auditors. The calendar shows others' as taken, without names."""
    if sees_all_teams(user):
        return Reservation.objects.all()
    return Reservation.objects.filter(project__team__in=my_team_ids(user))


def visible_series(user: Viewer) -> QuerySet[Series]:
    """Recurring reservations of own teams; of all teams for operators and auditors."""
    if sees_all_teams(user):
        return Series.objects.all()
    return Series.objects.filter(project__team__in=my_team_ids(user))


def visible_submissions(user: Viewer) -> QuerySet[Submission]:
    """Own ones and those of teams one leads; all for operators and auditors."""
    if sees_all_teams(user):
        return Submission.objects.all()
    if not _active(user):
        return Submission.objects.none()
    return Submission.objects.filter(
        Q(author_id=user.pk) | Q(team__in=my_team_ids(user, Membership.Role.LEAD))
    )


def visible_users(user: Viewer) -> QuerySet[User]:
    """Oneself and the people of own teams; everybody for operators, auditors and finance."""
    if sees_all_teams(user) or sees_all_charges(user):
        return User.objects.all()
    if not _active(user):
        return User.objects.none()
    return User.objects.filter(
        Q(pk=user.pk) | Q(pk__in=Membership.objects.filter(team__in=my_team_ids(user)).values("user_id"))
    )


def visible_charges(user: Viewer) -> QuerySet[Charge]:
    """Own charges and those of teams one leads; all for finance and auditors."""
    if sees_all_charges(user):
        return Charge.objects.all()
    if not _active(user):
        return Charge.objects.none()
    return Charge.objects.filter(Q(user_id=user.pk) | Q(team__in=my_team_ids(user, Membership.Role.LEAD)))


def visible_statements(user: Viewer) -> QuerySet[Statement]:
    """Months as finance and auditors see them; nobody else."""
    return Statement.objects.all() if sees_all_charges(user) else Statement.objects.none()


def visible_budgets(user: Viewer) -> QuerySet[Budget]:
    """Budgets of the visible teams and of their projects."""
    return Budget.objects.filter(Q(team__in=visible_teams(user)) | Q(project__in=visible_projects(user)))


def visible_audit(user: Viewer) -> QuerySet[AuditEvent]:
    """Own changes and those to teams one leads; all for operators and auditors."""
    if may(user, "audit.see_all"):
        return AuditEvent.objects.all()
    if not _active(user):
        return AuditEvent.objects.none()
    return AuditEvent.objects.filter(
        Q(actor_id=user.pk) | Q(team__in=my_team_ids(user, Membership.Role.LEAD))
    )


def visible_tokens(user: Viewer) -> QuerySet[ApiToken]:
    """Own tokens only."""
    return ApiToken.objects.filter(user_id=_id_of(user))


def visible_notifications(user: Viewer) -> QuerySet[Notification]:
    """Own notices only."""
    return Notification.objects.filter(user_id=_id_of(user))
