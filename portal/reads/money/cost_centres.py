"""Read cost centres and the projects and dedicated pools for which they pay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from django.db.models import Q, Sum

from portal import policy
from portal.models import User
from scheduler.core.model.snapshot import PoolKind
from scheduler.models import Pool, Project, Team
from telemetry.core.cost_shares import split_text
from telemetry.cost_centres.names import cost_centre_labels
from telemetry.cost_centres.payers import periods_of
from telemetry.cost_centres.splits import CostSplits, Payer, SplitPeriod, load_all_splits, load_splits
from telemetry.models import CostCentre, CostCentreShare, StatementLine


@dataclass(frozen=True)
class NamedSplit:
    """A split with the names of its cost centres, from ``start`` on."""

    text: str
    start: datetime


@dataclass(frozen=True)
class PayerRow:
    """A project or a dedicated pool with its present split, and the splits to come.

    ``key`` names it in forms. ``now`` is None if no cost centre pays.
    """

    name: str
    key: str
    team: Team | None
    is_pool: bool
    now: NamedSplit | None
    later: list[NamedSplit]


@dataclass(frozen=True)
class DirectoryRow:
    """An entry of the directory, and the number of projects and dedicated pools for which it pays now."""

    entry: CostCentre
    pays_for: int


@dataclass(frozen=True)
class PaidPeriod:
    """A period in which a cost centre pays ``percent`` of a project or of a dedicated pool."""

    name: str
    is_pool: bool
    percent: Decimal
    start: datetime
    end: datetime | None
    is_now: bool


@dataclass(frozen=True)
class PaidMonth:
    """The charges of a cost centre on the statement of a month in one currency.

    Corrections of a month with another currency are rows of their own.
    """

    month: date
    state: str
    currency: str
    charged: Decimal


def directory_rows(viewer: User, now: datetime) -> list[DirectoryRow]:
    """Return the visible entries of the directory, by code. Retired entries come last."""
    current = load_all_splits().current(now).values()
    counts = Counter(share.code for split in current for share in split)
    entries = policy.visible_cost_centres(viewer).order_by("code")
    rows = [DirectoryRow(entry, counts[entry.code]) for entry in entries]
    return sorted(rows, key=lambda row: row.entry.retired_from is not None)


def paid_periods(viewer: User, code: str, now: datetime) -> list[PaidPeriod]:
    """Return the visible periods in which a cost centre pays, newest first."""
    visible = {key_of(payer): payer for payer in _payers_with(viewer, code)}
    found = [
        PaidPeriod(
            name=visible[key].name,
            is_pool=key.pool is not None,
            percent=next(share.percent for share in period.split if share.code == code),
            start=period.start,
            end=period.end,
            is_now=period.start <= now and (period.end is None or now < period.end),
        )
        for key, period in periods_of(code)
        if key in visible
    ]
    return found[::-1]


def paid_months(code: str) -> list[PaidMonth]:
    """Return the charges of a cost centre by month and currency, newest first."""
    sums = (
        StatementLine.objects.filter(cost_centre=code)
        .values_list("statement__month", "statement__state", "currency")
        .annotate(total=Sum("charged_cents"))
        .order_by("-statement__month", "currency")
    )
    return [PaidMonth(*row) for row in sums]


def payer_rows(viewer: User, now: datetime) -> list[PayerRow]:
    """Return the visible projects and dedicated pools. Those without a cost centre come first."""
    payers = visible_payers(viewer)
    splits = _splits_of(payers)
    labels = cost_centre_labels()

    def named(period: SplitPeriod) -> NamedSplit:
        return NamedSplit(split_text(period.split, labels), period.start)

    rows = []
    for payer in payers:
        periods = splits.periods(key_of(payer))
        current = [period for period in periods if period.start <= now]
        rows.append(
            PayerRow(
                name=payer.name,
                key=form_key(payer),
                team=payer.team,
                is_pool=isinstance(payer, Pool),
                now=named(current[-1]) if current else None,
                later=[named(period) for period in periods if period.start > now],
            )
        )
    return sorted(rows, key=lambda row: row.now is not None)


def visible_payers(viewer: User) -> list[Project | Pool]:
    """Return the visible projects, then the visible dedicated pools.

    If the viewer sees all charges, the result includes projects of removed teams, and removed pools, that
    have no cost centre. Their charge lines keep a month open until a cost centre is set.
    """
    projects = Q(pk__in=policy.visible_projects(viewer).values("pk"))
    pools = Q(pk__in=policy.visible_pools(viewer).values("pk"))
    if policy.sees_all_charges(viewer):
        shares = CostCentreShare.objects.all()
        projects |= Q(team__removed_at__isnull=False) & ~Q(
            pk__in=shares.exclude(project=None).values("project")
        )
        pools |= Q(removed_at__isnull=False) & ~Q(pk__in=shares.exclude(pool=None).values("pool"))
    found = Project.objects.filter(projects).order_by("team__name", "name")
    dedicated = Pool.with_removed.filter(pools, kind=PoolKind.STATIC).order_by("name")
    return [payer for rows in (found, dedicated) for payer in rows.select_related("team")]


def form_key(payer: Project | Pool) -> str:
    """Return the name of a project or a pool in forms, such as ``project:vision/main``."""
    return f"pool:{payer.slug}" if isinstance(payer, Pool) else f"project:{payer.team.slug}/{payer.slug}"


def key_of(payer: Project | Pool) -> Payer:
    """Return the key of a project or of a dedicated pool in ``CostSplits``."""
    return Payer(pool=payer.pk) if isinstance(payer, Pool) else Payer(project=payer.pk)


def _splits_of(payers: list[Project | Pool]) -> CostSplits:
    pools = [payer.pk for payer in payers if isinstance(payer, Pool)]
    return load_splits([payer.pk for payer in payers if isinstance(payer, Project)], pools)


def _payers_with(viewer: User, code: str) -> Iterable[Project | Pool]:
    """Return the visible projects and pools for which a cost centre pays at some time."""
    projects = Project.objects.filter(cost_centre_shares__code=code).distinct()
    pools = Pool.with_removed.filter(cost_centre_shares__code=code).distinct()
    if not policy.sees_all_charges(viewer):
        projects = projects.filter(pk__in=policy.visible_projects(viewer))
        pools = pools.filter(pk__in=policy.visible_pools(viewer))
    return [*projects, *pools]
