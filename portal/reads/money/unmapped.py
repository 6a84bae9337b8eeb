"""Read the projects and dedicated pools without a cost centre, and the people who must act."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from django.db.models import Q, QuerySet, Sum

from portal.models import Membership, User
from portal.reads.money.cost_centres import form_key, key_of, visible_payers
from portal.wording.pages.money import cost_centre_pages
from scheduler.models import Pool, Project, Team
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.cost_centres.splits import Payer, load_all_splits
from telemetry.models import StatementLine, StatementState


@dataclass(frozen=True)
class UnmappedPayer:
    """A project, a dedicated pool or a team without a cost centre. ``key`` names it in forms; "" for a team.

    ``charged`` is the amount without a cost centre in the open ``months``. ``who_acts`` is a sentence.
    """

    key: str
    name: str
    charged: Decimal
    months: tuple[date, ...]
    who_acts: str


ChargedMonths = dict[date, Decimal]


def unmapped_payers(viewer: User, now: datetime) -> list[UnmappedPayer]:
    """Return the visible payers that now have no cost centre, or had none for charges of an open month.

    The payer with the highest charge without a cost centre comes first.
    """
    charged = _unmapped_charges(_unmapped_lines())
    splits = load_all_splits().current(now)
    payers = [
        payer for payer in visible_payers(viewer) if key_of(payer) in charged or key_of(payer) not in splits
    ]
    return _with_people([(payer, charged.get(key_of(payer), {})) for payer in payers])


def unmapped_in_month(month: date) -> list[UnmappedPayer]:
    """Return the payers whose charges of an open month have no cost centre, highest charge first.

    A team without a cost centre that pays for idle time is a payer, too. Only for people who see all charges.
    """
    lines = _unmapped_lines().filter(statement__month=month)
    charged = _unmapped_charges(lines)
    projects = Project.objects.filter(pk__in=[payer.project for payer in charged if payer.project])
    pools = Pool.with_removed.filter(pk__in=[payer.pool for payer in charged if payer.pool])
    found: list[tuple[Project | Pool | Team, ChargedMonths]] = [
        (payer, charged[key_of(payer)])
        for rows in (projects.select_related("team"), pools.select_related("team"))
        for payer in rows
    ]
    shares = StatementLine.objects.filter(
        cost_centre="", statement__state=StatementState.OPEN, statement__month=month, idle_share=True
    )
    idle = dict(shares.values_list("team").annotate(total=Sum("charged_cents")).filter(~Q(total=0)))
    teams = Team.with_removed.filter(pk__in=idle)
    return _with_people([*found, *((team, {month: idle[team.pk]}) for team in teams)])


def _with_people(
    payers: Sequence[tuple[Project | Pool | Team, ChargedMonths]],
) -> list[UnmappedPayer]:
    """Return payers with the people who must act, highest charge first."""
    leads = _leads_by_team(_team_of(payer)[0] for payer, _ in payers)
    finance = list(
        User.objects.filter(finance=True, is_active=True)
        .order_by("username")
        .values_list("username", flat=True)
    )
    rows = []
    for payer, months in payers:
        team, team_name = _team_of(payer)
        rows.append(
            UnmappedPayer(
                key="" if isinstance(payer, Team) else form_key(payer),
                name=payer.name,
                charged=sum(months.values(), Decimal(0)),
                months=tuple(sorted(months)),
                who_acts=cost_centre_pages.who_acts(team_name, leads.get(team or 0, []), finance),
            )
        )
    return sorted(rows, key=lambda row: (-row.charged, row.name))


def _team_of(payer: Project | Pool | Team) -> tuple[int | None, str]:
    """Return the id and the name of the team of a payer."""
    team = payer if isinstance(payer, Team) else payer.team
    return (team.pk, team.name) if team else (None, "")


def _unmapped_lines() -> QuerySet[StatementLine]:
    """Return the charged lines of open months without a cost centre, without shares of idle time."""
    return StatementLine.objects.filter(
        cost_centre="", statement__state=StatementState.OPEN, bucket__in=CHARGED_BUCKETS, idle_share=False
    )


def _unmapped_charges(lines: QuerySet[StatementLine]) -> dict[Payer, ChargedMonths]:
    """Return the charges of lines by payer and month."""
    found: dict[Payer, ChargedMonths] = defaultdict(dict)
    sums = lines.values_list("project", "pool", "statement__month").annotate(total=Sum("charged_cents"))
    for project, pool, month, total in sums.order_by("statement__month"):
        payer = Payer(pool=pool) if project is None else Payer(project=project)
        if total:
            found[payer][month] = found[payer].get(month, Decimal(0)) + total
    return found


def _leads_by_team(teams: Iterable[int | None]) -> dict[int, list[str]]:
    rows = Membership.objects.filter(team__in=set(teams), role=Membership.Role.LEAD, user__is_active=True)
    found: dict[int, list[str]] = defaultdict(list)
    for team, name in rows.order_by("user__username").values_list("team_id", "user__username"):
        found[team].append(name)
    return found
