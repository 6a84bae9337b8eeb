"""Set the cost centres that pay for projects, and for the unused time of dedicated pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from django.db import transaction
from django.db.models import Max

from portal import policy
from portal.input_checks import InputChecks, display_value
from portal.locks import lock_cost_centres
from portal.models import User
from portal.services import audit
from portal.wording.problems import cost_centre_problems
from scheduler.core.model.snapshot import PoolKind
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, Project
from telemetry.core.amounts import CENT, round_amount
from telemetry.core.cost_shares import WHOLE_PERCENT, CostShare, CostSplit, cost_split, split_text
from telemetry.cost_centres.splits import Payer, load_splits
from telemetry.ledger.locks import lock_ledger
from telemetry.models import CostCentre, CostCentreShare, Statement, StatementState
from telemetry.money.billing_months import month_bounds, next_month
from telemetry.money.transfers import MovedAmount, moved_amounts

MAX_SHARES = 20
KNOWN_CODES = 5
GivenShares = Sequence[tuple[Any, Any]]  # code and percent


def set_split(
    *,
    actor: User,
    shares: GivenShares,
    valid_from: datetime,
    now: datetime,
    project: Project | None = None,
    pool: Pool | None = None,
    why: str = "",
    via: str = "web",
) -> list[CostCentreShare]:
    """Set the cost centres that pay for a project, or for a dedicated pool's unused time, from a date on.

    ``shares`` are pairs of a code and a percent; the percents sum to 100. A split with the same date is
    replaced. The date may be in the past if its month is not closed. Charging then rewrites the lines since
    the date. Raises Invalid, NotAllowed. Raises OperationRejected if the same shares already apply at the
    date.
    """
    policy.require(actor, "cost_centre.change")
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=300)
    with transaction.atomic():
        # A close takes the same lock. So the month of ``valid_from`` cannot be closed before the split is
        # stored.
        lock_ledger()
        split, payer, valid_from = _checked(checks, shares, valid_from, project, pool, lock=True)
        checks.done()
        subject = project or pool
        assert subject is not None, "checked above"
        before = load_splits([payer.project or 0], [payer.pool or 0]).at(payer, valid_from)
        if before == split:
            numbers = {"split": split_text(split), "subject": subject.name}
            raise OperationRejected("split_is_in_force", numbers, field="shares")
        # If two splits have the same date, the newest ``created_at`` applies. Make this split the newest,
        # even if the clock was set back.
        earlier = CostCentreShare.objects.filter(project=project, pool=pool, valid_from=valid_from)
        newest: datetime | None = earlier.aggregate(newest=Max("created_at"))["newest"]
        created_at = now if newest is None else max(now, newest + timedelta(microseconds=1))
        rows = CostCentreShare.objects.bulk_create(
            CostCentreShare(
                project=project,
                pool=pool,
                code=share.code,
                percent=share.percent,
                valid_from=valid_from,
                created_at=created_at,
            )
            for share in split
        )
        payer_name = {"project": project.slug} if project else {"pool": subject.slug}
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_cost_centres",
            target=rows[0],
            team_id=subject.team_id,
            before={**payer_name, "shares": split_text(before)},
            after={**payer_name, "shares": split_text(split), "valid_from": valid_from},
            why=why,
        )
    return rows


def preview_split(
    *,
    actor: User,
    shares: GivenShares,
    valid_from: datetime,
    project: Project | None = None,
    pool: Pool | None = None,
) -> list[MovedAmount]:
    """Return the charges that a split would move between cost centres. Nothing is written.

    Raises Invalid, NotAllowed as ``set_split`` does.
    """
    policy.require(actor, "cost_centre.change")
    checks = InputChecks()
    split, payer, valid_from = _checked(checks, shares, valid_from, project, pool)
    checks.done()
    return moved_amounts(payer, split, valid_from)


def has_split(project: Project | None, pool: Pool | None, moment: datetime) -> bool:
    """Return True if cost centres pay for the project or the pool at ``moment``."""
    return CostCentreShare.objects.filter(project=project, pool=pool, valid_from__lte=moment).exists()


def earliest_start() -> datetime | None:
    """Return the end of the last closed month: new splits start then or later. None if no month is closed."""
    last_closed = Statement.objects.exclude(state=StatementState.OPEN).order_by("-month").first()
    return month_bounds(next_month(last_closed.month))[0] if last_closed else None


def _checked(
    checks: InputChecks,
    shares: GivenShares,
    valid_from: datetime,
    project: Project | None,
    pool: Pool | None,
    *,
    lock: bool = False,
) -> tuple[CostSplit, Payer, datetime]:
    if (project is None) == (pool is None):
        checks.note("project", None, cost_centre_problems.PROJECT_AND_POOL)
    if pool is not None and pool.kind != PoolKind.STATIC:
        checks.note("pool", pool.slug, cost_centre_problems.POOL_IS_SHARED.format(pool=pool.slug))
    split = checked_shares(checks, shares, lock=lock)
    valid_from = checks.aware_datetime("valid_from", valid_from)
    if "valid_from" not in checks.problems:
        check_open_month(checks, valid_from)
    return split, Payer(project.pk if project else None, pool.pk if pool else None), valid_from


def checked_shares(checks: InputChecks, given: GivenShares, *, lock: bool = False) -> CostSplit:
    """Return the shares as a split. Notes a problem of the field ``shares`` if they are not valid.

    ``lock`` locks the entries of the directory. So nobody can retire them before the transaction ends.
    """
    if not given or len(given) > MAX_SHARES:
        words = cost_centre_problems.TOO_MANY_SHARES if given else cost_centre_problems.NO_SHARES
        checks.note("shares", len(given), words.format(count=len(given), most=MAX_SHARES))
        return ()
    codes = [str(code).strip() for code, _ in given]
    _check_codes(checks, codes, lock=lock)
    percents = [checked_percent(checks, str(code), percent) for code, percent in given]
    total = sum(percents, Decimal(0))
    if "shares" not in checks.problems and total != WHOLE_PERCENT:
        checks.note("shares", str(total), cost_centre_problems.SHARES_SUM.format(total=total))
    if "shares" in checks.problems:
        return ()
    return cost_split([CostShare(code, percent) for code, percent in zip(codes, percents, strict=True)])


def _check_codes(checks: InputChecks, codes: Sequence[str], *, lock: bool) -> None:
    """Note a problem of the field ``shares`` if a code is unknown, retired or given twice."""
    if lock:
        found = lock_cost_centres(codes)
    else:
        found = {row.code: row for row in CostCentre.objects.filter(code__in=codes)}
    for code in codes:
        check_code(checks, "shares", code, found.get(code))
    for code, count in Counter(codes).items():
        if count > 1:
            words = cost_centre_problems.CODE_IS_REPEATED.format(field="shares", code=code, count=count)
            checks.note("shares", code, words)


def check_code(checks: InputChecks, field: str, code: str, row: CostCentre | None) -> None:
    """Note a problem if ``row``, the entry of the directory with this code, is missing or retired."""
    if row is None:
        known = CostCentre.objects.filter(retired_from=None).order_by("code").values_list("code", flat=True)
        names = ", ".join(known[:KNOWN_CODES]) or cost_centre_problems.DIRECTORY_IS_EMPTY
        words = cost_centre_problems.CODE_UNKNOWN.format(field=field, code=code[:40], known=names)
        checks.note(field, code, words)
    elif row.retired_from is not None:
        words = cost_centre_problems.CODE_IS_RETIRED.format(
            field=field, code=code, retired_from=row.retired_from.isoformat()
        )
        checks.note(field, code, words)


def checked_percent(checks: InputChecks, code: str, given: Any) -> Decimal:
    """Return the percent if it is more than 0, at most 100, and has at most two decimals."""
    try:
        percent = Decimal(str(given).strip()) if isinstance(given, str | int | Decimal) else Decimal("NaN")
    except InvalidOperation:
        percent = Decimal("NaN")
    exponent = percent.normalize().as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -2 or not 0 < percent <= WHOLE_PERCENT:
        words = cost_centre_problems.PERCENT_INVALID.format(code=code[:40], given=display_value(given))
        checks.note("shares", given, words)
        return Decimal(0)
    return round_amount(percent, CENT)


def check_open_month(checks: InputChecks, valid_from: datetime) -> None:
    """Note a problem if ``valid_from`` is in a closed month."""
    earliest = earliest_start()
    if earliest is not None and valid_from < earliest:
        given = valid_from.isoformat()
        words = cost_centre_problems.MONTH_IS_CLOSED.format(valid_from=given, earliest=earliest.isoformat())
        checks.note("valid_from", given, words)
