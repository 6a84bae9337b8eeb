"""Decide which actions a user may take and which objects a user may see. An action without a rule is denied.

Operator, finance and auditor are flags of the user. Member and lead are roles in a team. An auditor sees
everything and changes nothing, even if the auditor has other roles. ``may`` returns a bool. ``require``
raises an error with a sentence. Every list and every lookup starts from a ``visible_*`` queryset. So an
object that the user may not see is not found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import rules
from django.contrib.auth.models import AnonymousUser
from django.db.models import CharField, Exists, F, Func, OuterRef, Q, QuerySet, Value

from portal.errors import NotAllowed
from portal.models import (
    ApiToken,
    AuditEvent,
    Membership,
    NoticeChannel,
    NoticeMessage,
    Notification,
    Organisation,
    Submission,
    TokenScope,
    User,
)
from portal.models.audit import MONEY_VERBS
from portal.wording.problems import permission_problems
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
from telemetry.models import (
    Adjustment,
    Alert,
    Budget,
    Charge,
    ChargeCell,
    CostCentre,
    CostCentreShare,
    CostCentreStatement,
    Statement,
    StatementLine,
    UnusualSpend,
)

Viewer = User | AnonymousUser


# -- roles of a user


def team_id_of(thing: Any) -> int | None:
    """Return the id of the team to which ``thing`` belongs. Return None if the object has no team."""
    if isinstance(thing, Team):
        return int(thing.pk)
    if isinstance(thing, Project | Quota | Submission):
        return int(thing.team_id)
    if isinstance(thing, Workload | Reservation | Series | JobArray):
        return int(thing.project.team_id)
    if isinstance(thing, Pool | UnusualSpend | NoticeChannel):
        return thing.team_id
    if isinstance(thing, User):
        return thing.service_team_id
    return None


def _id_of(user: Viewer) -> int:
    """Return the id of a user whose account is active.

    Return 0 for anybody else; no user has this id.
    """
    return user.pk if isinstance(user, User) and user.is_active else 0


def role_in(user: Viewer, team_id: int | None) -> str:
    """Return the user's role in a team: "member", "lead", or an empty text without a membership."""
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


def _owns_service_account(user: Viewer, thing: Any = None) -> bool:
    """Return True for the owner of a service account, and for the leads of its team."""
    account = thing.user if isinstance(thing, ApiToken) else thing
    if not isinstance(account, User) or not account.is_service_account:
        return False
    return account.service_owner_id == user.pk or _lead(user, account)


def _service_account(user: Viewer, thing: Any = None) -> bool:
    return isinstance(user, User) and user.is_service_account


def _decides_membership(user: Viewer, thing: Any = None) -> bool:
    return isinstance(thing, Submission) and thing.kind == Submission.Kind.MEMBERSHIP and _lead(user, thing)


def _decides_budget(user: Viewer, thing: Any = None) -> bool:
    return isinstance(thing, Submission) and thing.kind == Submission.Kind.BUDGET and _finance(user)


def _may_not_decide_own(user: Viewer, thing: Any = None) -> bool:
    """Return True for the author of a submission, and for the owner of the service account that sent it."""
    return (
        isinstance(thing, Submission)
        and user.pk in (thing.author_id, thing.author.service_owner_id)
        and needs_separate_approver(thing)
    )


def needs_separate_approver(submission: Submission) -> bool:
    """Return True if only a person other than its author may decide this submission.

    The setting ``separate_approver`` of the organisation decides. If it is None, the result is True if two
    people or more have the role that decides: finance for budgets, otherwise operators. The result does not
    depend on the author.
    """
    return _separate_approver("finance" if submission.kind == Submission.Kind.BUDGET else "operator")


def operators_need_separate_approver() -> bool:
    """Return True if no operator may decide their own request now."""
    return _separate_approver("operator")


def _separate_approver(role: str) -> bool:
    setting = Organisation.objects.values_list("separate_approver", flat=True).first()
    if setting is not None:
        return bool(setting)
    return User.objects.filter(is_active=True, auditor=False, **{role: True}).count() > 1


def _is_budget_request(user: Viewer, thing: Any = None) -> bool:
    return isinstance(thing, Submission) and thing.kind == Submission.Kind.BUDGET


is_active = rules.predicate(_active)
changes_things = rules.predicate(_changes_things)
is_operator = rules.predicate(_operator)
is_finance = rules.predicate(_finance)
is_auditor = rules.predicate(_auditor)
is_member = rules.predicate(_member)
is_lead = rules.predicate(_lead)
is_owner = rules.predicate(_owner)
may_not_decide_own = rules.predicate(_may_not_decide_own)
owns_service_account = rules.predicate(_owns_service_account)
is_service_account = rules.predicate(_service_account)
decides_membership = rules.predicate(_decides_membership)
decides_budget = rules.predicate(_decides_budget)
is_budget_request = rules.predicate(_is_budget_request)


# -- actions

# For each action: (rule, sentence of a refusal). The comment above an action names the type of its ``thing``.
ACTIONS: dict[str, tuple[Any, str]] = {
    # [Project]
    "workload.launch": (
        changes_things & is_member,
        permission_problems.WORKLOAD_LAUNCH,
    ),
    "reservation.request": (
        changes_things & is_member,
        permission_problems.RESERVATION_REQUEST,
    ),
    # [Workload]
    "workload.change": (
        changes_things & ((is_owner & is_member) | is_lead | is_operator),
        permission_problems.WORKLOAD_CHANGE,
    ),
    "workload.relaunch": (
        changes_things & is_member,
        permission_problems.WORKLOAD_RELAUNCH,
    ),
    "workload.open": (changes_things & is_owner & is_member, permission_problems.WORKLOAD_OPEN),
    "workload.logs": (
        is_active & (is_member | is_operator | is_auditor),
        permission_problems.WORKLOAD_LOGS,
    ),
    # [Reservation]
    "reservation.change": (
        changes_things & ((is_owner & is_member) | is_lead | is_operator),
        permission_problems.RESERVATION_CHANGE,
    ),
    # [Team]
    "quota.request": (
        changes_things & (is_lead | is_operator),
        permission_problems.QUOTA_REQUEST,
    ),
    "budget.request": (changes_things & is_lead, permission_problems.BUDGET_REQUEST),
    "team.change": (
        changes_things & (is_lead | is_operator),
        permission_problems.TEAM_CHANGE,
    ),
    "team.remove": (changes_things & is_operator, permission_problems.TEAM_REMOVE),
    "team.join": (changes_things & ~is_service_account, permission_problems.TEAM_JOIN),
    "service_account.create": (
        changes_things & (is_lead | is_operator) & ~is_service_account,
        permission_problems.SERVICE_ACCOUNT_CREATE,
    ),
    # [User], a service account
    "service_account.change": (
        changes_things & (owns_service_account | is_operator) & ~is_service_account,
        permission_problems.SERVICE_ACCOUNT_CHANGE,
    ),
    # [Team]
    "notice_channel.create": (
        changes_things & (is_lead | is_operator),
        permission_problems.NOTICE_CHANNEL_CREATE,
    ),
    # [NoticeChannel]
    "notice_channel.change": (
        is_active & (is_owner | (changes_things & (is_lead | is_operator))),
        permission_problems.NOTICE_CHANNEL_CHANGE,
    ),
    # [UnusualSpend]
    "unusual_spend.explain": (
        changes_things & (is_lead | is_finance),
        permission_problems.UNUSUAL_SPEND_EXPLAIN,
    ),
    # [Submission]
    "submission.decide": (
        changes_things
        & ((is_operator & ~is_budget_request) | decides_membership | decides_budget)
        & ~may_not_decide_own,
        permission_problems.SUBMISSION_DECIDE,
    ),
    "submission.withdraw": (
        changes_things & (is_owner | is_lead),
        permission_problems.SUBMISSION_WITHDRAW,
    ),
    # The following actions have no ``thing``.
    "approval.see": (
        is_active & (is_operator | is_auditor),
        permission_problems.APPROVAL_SEE,
    ),
    "recording.see": (
        is_active & (is_operator | is_auditor),
        permission_problems.RECORDING_SEE,
    ),
    "system.see": (is_active & (is_operator | is_auditor), permission_problems.SYSTEM_SEE),
    "metrics.see": (is_active & (is_operator | is_auditor), permission_problems.METRICS_SEE),
    "host.change": (changes_things & is_operator, permission_problems.HOST_CHANGE),
    "pool.change": (changes_things & is_operator, permission_problems.POOL_CHANGE),
    "capacity.see": (
        is_active & (is_operator | is_finance | is_auditor),
        permission_problems.CAPACITY_SEE,
    ),
    "capacity.study": (changes_things & is_operator, permission_problems.CAPACITY_STUDY),
    "team.create": (changes_things & is_operator, permission_problems.TEAM_CREATE),
    "user.change": (changes_things & is_operator, permission_problems.USER_CHANGE),
    "security.change": (changes_things & is_operator, permission_problems.SECURITY_CHANGE),
    "identity.see": (is_active & (is_operator | is_auditor), permission_problems.IDENTITY_SEE),
    "identity.change": (changes_things & is_operator, permission_problems.IDENTITY_CHANGE),
    "template.change": (changes_things & is_operator, permission_problems.TEMPLATE_CHANGE),
    "health_rule.change": (
        changes_things & is_operator,
        permission_problems.HEALTH_RULE_CHANGE,
    ),
    "retention.see": (is_active & (is_operator | is_auditor), permission_problems.RETENTION_SEE),
    "retention.change": (changes_things & is_operator, permission_problems.RETENTION_CHANGE),
    "database_maintenance.see": (
        is_active & (is_operator | is_auditor),
        permission_problems.DATABASE_MAINTENANCE_SEE,
    ),
    "database_maintenance.change": (
        changes_things & is_operator,
        permission_problems.DATABASE_MAINTENANCE_CHANGE,
    ),
    "alert.handle": (changes_things & is_operator, permission_problems.ALERT_HANDLE),
    "alert_rule.change": (changes_things & is_operator, permission_problems.ALERT_RULE_CHANGE),
    "price.change": (changes_things & is_finance, permission_problems.PRICE_CHANGE),
    "refund_limit.change": (changes_things & is_finance, permission_problems.REFUND_LIMIT_CHANGE),
    "budget.change": (changes_things & is_finance, permission_problems.BUDGET_CHANGE),
    "cost_centre.change": (changes_things & is_finance, permission_problems.COST_CENTRE_CHANGE),
    "adjustment.change": (changes_things & is_finance, permission_problems.ADJUSTMENT_CHANGE),
    "statement.close": (changes_things & is_finance, permission_problems.STATEMENT_CLOSE),
    # Auditors may take this action although they change nothing: the second signature counts as a check.
    "statement.confirm": (is_active & (is_finance | is_auditor), permission_problems.STATEMENT_CONFIRM),
    "unusual_spend.explain_all": (
        changes_things & is_finance,
        permission_problems.UNUSUAL_SPEND_EXPLAIN_ALL,
    ),
    "billing.change": (changes_things & is_finance, permission_problems.BILLING_CHANGE),
    "charges.see_all": (
        is_active & (is_finance | is_auditor),
        permission_problems.CHARGES_SEE_ALL,
    ),
    "audit.see_all": (
        is_active & (is_operator | is_auditor),
        permission_problems.AUDIT_SEE_ALL,
    ),
    "own.change": (is_active, permission_problems.OWN_CHANGE),
    # [ApiToken]
    "token.revoke": (
        is_active & (is_owner | owns_service_account | is_operator),
        permission_problems.TOKEN_REVOKE,
    ),
}

RULES = rules.RuleSet({name: rule for name, (rule, _) in ACTIONS.items()})


def may(user: Viewer, action: str, thing: Any = None) -> bool:
    """Return True if ``user`` may take ``action`` on ``thing``. Raises KeyError for an unknown action."""
    if action not in ACTIONS:
        raise KeyError(action)
    return bool(RULES.test_rule(action, user, thing))


def require(user: Viewer, action: str, thing: Any = None) -> None:
    """Raise NotAllowed unless the user may take the action. The error contains the action's sentence."""
    if not may(user, action, thing):
        is_own = action == "submission.decide" and _may_not_decide_own(user, thing)
        raise NotAllowed(permission_problems.OWN_REQUEST if is_own else ACTIONS[action][1])


def require_scope(token: ApiToken | None, scope: TokenScope) -> None:
    """Raise NotAllowed unless the token has the scope. The error names the scope.

    ``token`` is None for a request that a session authenticates. A session has every scope.
    """
    if token is not None and scope not in token.scopes:
        raise NotAllowed(
            permission_problems.TOKEN_SCOPE.format(
                name=token.name, scopes=", ".join(token.scopes), scope=str(scope)
            )
        )


# -- visible objects


def sees_all_teams(user: Viewer) -> bool:
    """Return True for operators and auditors, who see the work of every team."""
    return _active(user) and (_operator(user) or _auditor(user))


def sees_all_charges(user: Viewer) -> bool:
    """Return True for finance and auditors, who see the charges of every team."""
    return may(user, "charges.see_all")


def sees_owner_cost(user: Viewer) -> bool:
    """Return True for finance, operators and auditors, who see the owner's cost of a GPU-hour.

    Other users see only its price.
    """
    return sees_all_charges(user) or sees_all_teams(user)


def sees_cost_of_charges(user: Viewer) -> bool:
    """Return True for finance and auditors, who see the owner's cost of charges, on pages and in files.

    Operators see the owner's cost of a GPU-hour, and the cost of the use of the pool.
    """
    return sees_all_charges(user)


def teams_whose_waste_is_named(user: Viewer) -> list[int] | None:
    """Return the ids of the teams in which the user sees whose work wasted GPU-hours. None means all teams.

    Leads see the names of their teams. Everybody sees their own work and their own rank.
    """
    if sees_all_teams(user) or sees_all_charges(user):
        return None
    return list(my_team_ids(user, Membership.Role.LEAD).values_list("team_id", flat=True))


def my_team_ids(user: Viewer, role: str = "") -> QuerySet[Membership, Any]:
    """Return a subquery of the ids of the user's teams.

    If ``role`` is given, include only teams in which the user has this role.
    """
    mine = Membership.objects.filter(user_id=_id_of(user))
    return (mine.filter(role=role) if role else mine).values("team_id")


def visible_teams(user: Viewer) -> QuerySet[Team]:
    """Return the user's teams. Operators, auditors and finance see all teams."""
    return _visible_team_rows(user, Team.objects.all())


def visible_teams_with_removed(user: Viewer) -> QuerySet[Team]:
    """Return the visible teams and the visible removed teams.

    A removed team has no members. So only operators, auditors and finance see it.
    """
    return _visible_team_rows(user, Team.with_removed.all())


def _visible_team_rows(user: Viewer, teams: QuerySet[Team]) -> QuerySet[Team]:
    if sees_all_teams(user) or sees_all_charges(user):
        return teams
    return teams.filter(pk__in=my_team_ids(user))


def named_teams(user: Viewer) -> QuerySet[Team]:
    """Return the teams whose names the user may read in a sentence.

    These are the visible teams, and the teams with a quota in a visible pool.
    """
    sharing = Quota.objects.filter(pool__in=visible_pools(user)).values("team")
    return Team.objects.filter(Q(pk__in=visible_teams(user).values("pk")) | Q(pk__in=sharing))


def visible_projects(user: Viewer) -> QuerySet[Project]:
    """Return the projects of visible teams."""
    if sees_all_teams(user) or sees_all_charges(user):
        return Project.objects.filter(team__removed_at=None)
    return Project.objects.filter(team__in=my_team_ids(user))


def launchable_projects(user: Viewer) -> QuerySet[Project]:
    """Return the active projects in which the user may start work."""
    if not _changes_things(user):
        return Project.objects.none()
    return Project.objects.filter(active=True, team__in=my_team_ids(user))


def visible_pools(user: Viewer) -> QuerySet[Pool]:
    """Return all dynamic pools, and the static pools of the user's teams.

    Operators, auditors and finance see all pools.
    """
    return _visible_pool_rows(user, Pool.objects.all())


def visible_pools_with_removed(user: Viewer) -> QuerySet[Pool]:
    """Return the visible pools, including removed pools."""
    return _visible_pool_rows(user, Pool.with_removed.all())


def _visible_pool_rows(user: Viewer, pools: QuerySet[Pool]) -> QuerySet[Pool]:
    if not _active(user):
        return pools.none()
    if sees_all_teams(user) or sees_all_charges(user):
        return pools
    return pools.filter(Q(team__isnull=True) | Q(team__in=my_team_ids(user)))


def visible_hosts(user: Viewer) -> QuerySet[Host]:
    """Return the hosts of visible pools.

    This grants no access to the workloads on a host; ``visible_workloads`` decides about them.
    """
    return Host.objects.filter(pool__in=visible_pools(user))


def visible_hosts_with_removed(user: Viewer) -> QuerySet[Host]:
    """Return the visible hosts, including removed hosts and the hosts of removed pools."""
    return Host.with_removed.filter(pool__in=visible_pools_with_removed(user))


def named_hardware(user: Viewer, dimension: str) -> set[int] | None:
    """Return the ids of the hosts or GPUs that the user sees in sums by ``dimension``; None means all.

    Hosts and GPUs of dedicated pools of other teams have no name for the user. Other dimensions have none of
    their names.
    """
    if dimension not in ("host", "gpu") or sees_all_teams(user) or sees_all_charges(user):
        return None
    hosts = visible_hosts_with_removed(user)
    rows = hosts if dimension == "host" else Gpu.objects.filter(host__in=hosts)
    return set(rows.values_list("pk", flat=True))


def visible_gpus(user: Viewer) -> QuerySet[Gpu]:
    """Return the GPUs of visible hosts."""
    return Gpu.objects.filter(host__pool__in=visible_pools(user))


def visible_quotas(user: Viewer) -> QuerySet[Quota]:
    """Return the quotas of visible teams."""
    return Quota.objects.filter(team__in=visible_teams(user))


def visible_workloads(user: Viewer) -> QuerySet[Workload]:
    """Return the workloads of the user's teams. Operators and auditors see all workloads."""
    if sees_all_teams(user):
        return Workload.objects.all()
    return Workload.objects.filter(project__team__in=my_team_ids(user))


def visible_arrays(user: Viewer) -> QuerySet[JobArray]:
    """Return the job arrays of the user's teams. Operators and auditors see all job arrays."""
    if sees_all_teams(user):
        return JobArray.objects.all()
    return JobArray.objects.filter(project__team__in=my_team_ids(user))


def visible_alerts(user: Viewer) -> QuerySet[Alert]:
    """Return the alerts about the work and the reservations of the user's teams.

    Operators and auditors see all alerts.
    """
    if sees_all_teams(user):
        return Alert.objects.all()
    mine = my_team_ids(user)
    return Alert.objects.filter(Q(workload__project__team__in=mine) | Q(reservation__project__team__in=mine))


def visible_volumes(user: Viewer) -> QuerySet[Volume]:
    """Return the homes of the user and of the members of teams that the user leads.

    Operators and auditors see all homes. Only names and sizes are visible, never files.
    """
    if sees_all_teams(user):
        return Volume.objects.all()
    if not _active(user):
        return Volume.objects.none()
    led = Membership.objects.filter(team__in=my_team_ids(user, Membership.Role.LEAD))
    # The first home of a user has the user's name. Homes for later teams are named NAME~NUMBER. User names
    # contain no "~".
    person = Func(F("name"), Value("~"), Value(1), function="split_part", output_field=CharField())
    volumes = Volume.objects.alias(whose=person)
    return volumes.filter(Q(whose=user.get_username()) | Q(whose__in=led.values("user__username")))


def visible_reservations(user: Viewer) -> QuerySet[Reservation]:
    """Return the reservations of the user's teams. Operators and auditors see all reservations.

    The calendar also shows the reservations of other teams, but without names.
    """
    if sees_all_teams(user):
        return Reservation.objects.all()
    return Reservation.objects.filter(project__team__in=my_team_ids(user))


def visible_series(user: Viewer) -> QuerySet[Series]:
    """Return the recurring reservations of the user's teams. Operators and auditors see all series."""
    if sees_all_teams(user):
        return Series.objects.all()
    return Series.objects.filter(project__team__in=my_team_ids(user))


def visible_submissions(user: Viewer) -> QuerySet[Submission]:
    """Return the submissions of the user and of teams that the user leads.

    Operators and auditors see all submissions. Finance sees all requests for budgets.
    """
    if sees_all_teams(user):
        return Submission.objects.all()
    if not _active(user):
        return Submission.objects.none()
    visible = Q(author_id=user.pk) | Q(team__in=my_team_ids(user, Membership.Role.LEAD))
    if _finance(user):
        visible |= Q(kind=Submission.Kind.BUDGET)
    return Submission.objects.filter(visible)


def decidable_submissions(user: Viewer, submissions: Iterable[Submission]) -> set[int]:
    """Return the ids of the submissions that the user may decide (``submission.decide``).

    The number of queries does not depend on the number of submissions. Select ``author`` with them.
    """
    if not _changes_things(user):
        return set()
    led = set(my_team_ids(user, Membership.Role.LEAD).values_list("team_id", flat=True))
    separate = {role: _separate_approver(role) for role in ("operator", "finance")}
    decidable = set()
    for row in submissions:
        is_budget = row.kind == Submission.Kind.BUDGET
        may_decide = _finance(user) if is_budget else _operator(user)
        may_decide = may_decide or (row.kind == Submission.Kind.MEMBERSHIP and row.team_id in led)
        is_own = user.pk in (row.author_id, row.author.service_owner_id)
        if may_decide and not (is_own and separate["finance" if is_budget else "operator"]):
            decidable.add(row.pk)
    return decidable


def visible_users(user: Viewer) -> QuerySet[User]:
    """Return the user and the members of the user's teams.

    Operators, auditors and finance see all users.
    """
    if sees_all_teams(user) or sees_all_charges(user):
        return User.objects.all()
    if not _active(user):
        return User.objects.none()
    return User.objects.filter(
        Q(pk=user.pk) | Q(pk__in=Membership.objects.filter(team__in=my_team_ids(user)).values("user_id"))
    )


def visible_charges(user: Viewer) -> QuerySet[Charge]:
    """Return the charges of the user and of teams that the user leads.

    Finance and auditors see all charges.
    """
    if sees_all_charges(user):
        return Charge.objects.all()
    if not _active(user):
        return Charge.objects.none()
    return Charge.objects.filter(Q(user_id=user.pk) | Q(team__in=my_team_ids(user, Membership.Role.LEAD)))


def led_team_ids(user: Viewer) -> frozenset[int]:
    """Return the ids of the teams that the user leads."""
    return frozenset(my_team_ids(user, Membership.Role.LEAD).values_list("team_id", flat=True))


def charge_right(
    user: Viewer, led_teams: Callable[[], frozenset[int]] | None = None
) -> Callable[[Workload | JobArray], bool]:
    """Return a function that says whether the user may see the charges of a workload or of a job array.

    The rule is that of ``visible_charges``. The teams that the user leads are read at most once. A caller
    that has already read them gives them as ``led_teams``.
    """
    if sees_all_charges(user):
        return lambda work: True
    if not _active(user):
        return lambda work: False
    led = functools.cache(led_teams or functools.partial(led_team_ids, user))
    return lambda work: work.owner_id == user.pk or work.project.team_id in led()


def group_charge_right(
    user: Viewer, dimension: str, led_teams: Callable[[], frozenset[int]] | None = None
) -> Callable[[Any], bool]:
    """Return a function that says whether the user may see the charges of a group. Its argument is the key.

    In groups by person, people see their own row. In groups by team or project, leads see those they lead.
    Finance and auditors see all. ``led_teams`` is as in ``charge_right``.
    """
    if sees_all_charges(user):
        return lambda key: True
    if not _active(user):
        return lambda key: False
    if dimension == "user":
        return lambda key: key == user.pk
    seen: frozenset[int] = frozenset()
    if dimension in ("team", "project"):
        seen = (led_teams or functools.partial(led_team_ids, user))()
    if dimension == "project" and seen:
        seen = frozenset(Project.objects.filter(team__in=seen).values_list("pk", flat=True))
    return lambda key: key in seen


def visible_cells(user: Viewer) -> QuerySet[ChargeCell] | None:
    """Return the cells (sums) of the charges that the user may see; None if the user sees all charges.

    If the result is None, a query can read statement lines instead. There are far fewer lines than cells.
    """
    if sees_all_charges(user):
        return None
    if not _active(user):
        return ChargeCell.objects.none()
    return ChargeCell.objects.filter(
        Q(user_id=user.pk) | Q(line__team__in=my_team_ids(user, Membership.Role.LEAD))
    )


def visible_unusual_spend(user: Viewer) -> QuerySet[UnusualSpend]:
    """Return the unusual spend of the user and of teams that the user leads.

    Finance and auditors see all of it.
    """
    if sees_all_charges(user):
        return UnusualSpend.objects.all()
    if not _active(user):
        return UnusualSpend.objects.none()
    led = my_team_ids(user, Membership.Role.LEAD)
    return UnusualSpend.objects.filter(Q(user_id=user.pk) | Q(team__in=led))


def visible_statements(user: Viewer) -> QuerySet[Statement]:
    """Return all statements for finance and auditors, and none for other users."""
    return Statement.objects.all() if sees_all_charges(user) else Statement.objects.none()


def visible_documents(user: Viewer) -> QuerySet[CostCentreStatement]:
    """Return the statements of cost centres: all of them for finance and auditors.

    A lead sees a statement if all its lines are of teams that the lead leads.
    """
    if sees_all_charges(user):
        return CostCentreStatement.objects.all()
    if not _active(user):
        return CostCentreStatement.objects.none()
    led = my_team_ids(user, Membership.Role.LEAD)
    lines = StatementLine.objects.filter(
        statement=OuterRef("statement"), cost_centre=OuterRef("cost_centre"), shared_out=False
    )
    return CostCentreStatement.objects.filter(
        Exists(lines.filter(team__in=led)), ~Exists(lines.exclude(team__in=led))
    )


def visible_adjustments(user: Viewer) -> QuerySet[Adjustment]:
    """Return the credits and manual adjustments: all of them for finance and auditors.

    Other users see the approved ones on charges that they see.
    """
    cells = visible_cells(user)
    return Adjustment.objects.all() if cells is None else Adjustment.objects.filter(cell__in=cells)


def visible_budgets(user: Viewer) -> QuerySet[Budget]:
    """Return the budgets of visible teams and projects.

    Finance and auditors also see the budgets of cost centres.
    """
    visible = Q(team__in=visible_teams(user)) | Q(project__in=visible_projects(user))
    return Budget.objects.filter(visible | ~Q(cost_centre="") if sees_all_charges(user) else visible)


def visible_cost_centres(user: Viewer) -> QuerySet[CostCentre]:
    """Return the cost centres of visible projects and pools. Finance and auditors see all cost centres."""
    if sees_all_charges(user):
        return CostCentre.objects.all()
    shares = Q(project__in=visible_projects(user)) | Q(pool__in=visible_pools(user))
    codes = CostCentreShare.objects.filter(shares).values("code")
    return CostCentre.objects.filter(code__in=codes)


def visible_audit(user: Viewer) -> QuerySet[AuditEvent]:
    """Return the audit records of the user's changes and of changes in teams that the user leads.

    Finance sees all changes of money, and operators and auditors see all records.
    """
    if may(user, "audit.see_all"):
        return AuditEvent.objects.all()
    if not _active(user):
        return AuditEvent.objects.none()
    seen = Q(actor_id=user.pk) | Q(team__in=my_team_ids(user, Membership.Role.LEAD))
    if sees_all_charges(user):
        seen |= Q(verb__in=MONEY_VERBS)
    return AuditEvent.objects.filter(seen)


def visible_tokens(user: Viewer) -> QuerySet[ApiToken]:
    """Return the user's own tokens."""
    return ApiToken.objects.filter(user_id=_id_of(user))


def visible_service_accounts(user: Viewer) -> QuerySet[User]:
    """Return the service accounts of the user's teams. Operators and auditors see all of them."""
    accounts = User.objects.exclude(service_team=None)
    return accounts if sees_all_teams(user) else accounts.filter(service_team__in=my_team_ids(user))


def revocable_tokens(user: Viewer) -> QuerySet[ApiToken]:
    """Return the user's own tokens, and those of service accounts that the user owns.

    Leads also find the tokens of all service accounts of their teams. Operators find those of every team.
    """
    found = Q(user_id=_id_of(user)) | Q(user__service_owner_id=_id_of(user))
    found |= Q(user__service_team__in=my_team_ids(user, Membership.Role.LEAD))
    if _active(user) and _operator(user):
        found |= Q(user__service_team__isnull=False)
    return ApiToken.objects.filter(found)


def visible_notifications(user: Viewer) -> QuerySet[Notification]:
    """Return the user's own notices."""
    return Notification.objects.filter(user_id=_id_of(user))


def visible_notice_channels(user: Viewer) -> QuerySet[NoticeChannel]:
    """Return the user's own channels and those of teams that the user leads. Operators see all teams'."""
    found = Q(user_id=_id_of(user)) | Q(team__in=my_team_ids(user, Membership.Role.LEAD))
    if _active(user) and _operator(user):
        found |= Q(team__isnull=False)
    return NoticeChannel.objects.filter(found)


def visible_notice_messages(user: Viewer) -> QuerySet[NoticeMessage]:
    """Return the messages of the channels that the user sees."""
    return NoticeMessage.objects.filter(channel__in=visible_notice_channels(user))
