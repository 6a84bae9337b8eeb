"""Check that a month is complete and consistent before it is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice
from typing import Any

from django.db.models import F, Q, QuerySet, Sum

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.rejection import OperationRejected
from scheduler.models import Gpu
from telemetry.audit.ledger_audit import audit_month
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.cost_centres.payers import names_of_payers, unsettled_payers
from telemetry.ledger.cents import cent_differences
from telemetry.ledger.sums import sum_differences
from telemetry.models import (
    UNMAPPED_LINE,
    Adjustment,
    AdjustmentState,
    Charge,
    ChargedUntil,
    EvidenceDue,
    HostHour,
    RollupDue,
    Statement,
    StatementLine,
)
from telemetry.money.billing_months import month_bounds
from telemetry.money.reconciliation import reconcile_costs
from telemetry.rollups.host_hours import hosts_by_state, hours_recorded_until

# Finance may close a month without the samples that hosts still owe, if a person gives a reason.
SAMPLES_ARRIVED = "every host has sent its samples of the month"
LINES_MAPPED = "every charged line has a cost centre"
ADJUSTMENTS_DECIDED = "every credit and adjustment is approved, rejected or withdrawn"

MAX_NAMES = 20
SHOWN_DIFFERENCES = 5
AUDITED = "every line agrees with the facts"

CheckFigures = tuple[bool, dict[str, Any]]  # (True if the condition holds, the numbers behind the result)


@dataclass(frozen=True)
class MonthSpan:
    """A month ``[start, end)``. ``first_hour`` is the UTC hour in which it begins."""

    month: date
    start: datetime
    end: datetime

    @property
    def first_hour(self) -> datetime:
        """Return the start of the first hour. Zones may differ from UTC by parts of an hour."""
        return self.start.replace(minute=0, second=0)


@dataclass(frozen=True)
class CloseCheck:
    """A condition of a close.

    ``quick`` is False if the check reads every charge line of the month. ``after_end`` is True if the
    condition can hold only after the end of the month.
    """

    condition: str
    run: Callable[[MonthSpan], CheckFigures]
    quick: bool = True
    after_end: bool = False


def close_checks(month: date) -> list[dict[str, Any]]:
    """Return the results of all checks that a month must pass before it is closed, in order.

    Each result has the keys ``check`` (the condition in words), ``ok`` (True or False) and ``figures`` (the
    numbers behind the result).
    """
    return _run_checks(month, CHECKS)


def quick_checks(month: date) -> list[dict[str, Any]]:
    """Return the results of the checks that do not read the charge lines of a month, in order."""
    return _run_checks(month, [check for check in CHECKS if check.quick])


def _run_checks(month: date, checks: Iterable[CloseCheck]) -> list[dict[str, Any]]:
    span = MonthSpan(month, *month_bounds(month))
    return [_check_result(check.condition, *check.run(span)) for check in checks]


def _something_charged(span: MonthSpan) -> CheckFigures:
    return Charge.objects.filter(month=span.month).exists(), {}


def _charged_to_the_end(span: MonthSpan) -> CheckFigures:
    behind = ChargedUntil.objects.filter(until__lt=span.end, since__lt=span.end)
    behind = behind.filter(Q(gpu__retired_at=None) | Q(gpu__retired_at__gte=span.end))
    never = Gpu.objects.filter(charged=None, created_at__lt=span.end)
    counts = {"behind": behind.count(), "never": never.count()}
    hosts = _hosts(behind.values_list("gpu__host__name"), never.values_list("host__name"))
    return not any(counts.values()), {**counts, **hosts}


def _charged_from_the_beginning(span: MonthSpan) -> CheckFigures:
    # Loaded history is charged backwards in time. A month can be closed only when each of its GPUs is charged
    # from the creation of the GPU.
    late = ChargedUntil.objects.filter(since__gt=span.start, gpu__created_at__lt=span.end)
    late = late.filter(since__gt=F("gpu__created_at"))
    count = late.count()
    return not count, {"later": count, **_hosts(late.values_list("gpu__host__name"))}


def _every_line_priced(span: MonthSpan) -> CheckFigures:
    unpriced = Charge.objects.filter(month=span.month, price=None).values_list("model", flat=True)
    models = sorted(set(unpriced.order_by().distinct()))
    return not models, {"models": models}


def _every_line_mapped(span: MonthSpan) -> CheckFigures:
    unmapped = _names_without_cost_centre(span.month)
    return not unmapped, unmapped


def _transfers_charged(span: MonthSpan) -> CheckFigures:
    transfers = names_of_payers(unsettled_payers(span.end))[:MAX_NAMES]
    return not transfers, {"not charged": transfers}


def _adjustments_decided(span: MonthSpan) -> CheckFigures:
    undecided = _undecided_adjustments(span.month)
    return not undecided, {"undecided": undecided}


def _seconds_in_one_bucket(span: MonthSpan) -> CheckFigures:
    wrong = _gpus_with_wrong_seconds(span.month, span.start, span.end)
    return not wrong, {"gpus": wrong[:MAX_NAMES]}


def _costs_reconciled(span: MonthSpan) -> CheckFigures:
    pools = reconcile_costs(span.month)
    rows = [{"pool": pool.pool_name, "left": str(pool.total), "cost": str(pool.cost)} for pool in pools]
    return all(pool.holds for pool in pools), {"pools": rows}


def _samples_rolled_up(span: MonthSpan) -> CheckFigures:
    due = RollupDue.objects.filter(bucket__gte=span.first_hour, bucket__lt=span.end)
    count = due.count()
    return not count, {"due": count, **_hosts(due.values_list("host__name"))}


def _evidence_up_to_date(span: MonthSpan) -> CheckFigures:
    due = EvidenceDue.objects.filter(hour__gte=span.first_hour, hour__lt=span.end)
    count, recorded = due.count(), hours_recorded_until()
    figures = {"due": count, "hours_recorded_until": recorded.isoformat() if recorded else None}
    up_to_date = not count and (recorded is None or recorded >= span.end)
    return up_to_date, {**figures, **_hosts(due.values_list("host__name"))}


def _samples_arrived(span: MonthSpan) -> CheckFigures:
    samples = hosts_by_state(span.first_hour, span.end)
    return not samples[HostHour.State.WAITING], samples


def _sums_equal_charges(span: MonthSpan) -> CheckFigures:
    statement = Statement.objects.filter(month=span.month).first()
    differences = [str(each) for each in sum_differences(span.month)]
    cents = cent_differences(statement.pk) if statement else []
    shown = {"differences": differences[:SHOWN_DIFFERENCES], "cents": cents[:SHOWN_DIFFERENCES]}
    return not differences and not cents, shown


CHECKS: tuple[CloseCheck, ...] = (
    CloseCheck("something was charged in the month", _something_charged),
    CloseCheck("every GPU is charged to the end of the month", _charged_to_the_end, after_end=True),
    CloseCheck("every GPU is charged from the time it was added", _charged_from_the_beginning),
    CloseCheck("every line has a price", _every_line_priced, quick=False),
    CloseCheck(LINES_MAPPED, _every_line_mapped),
    CloseCheck("every change of cost centres is charged", _transfers_charged),
    CloseCheck(ADJUSTMENTS_DECIDED, _adjustments_decided),
    CloseCheck("every second of every GPU is in exactly one bucket", _seconds_in_one_bucket, quick=False),
    CloseCheck(
        "charged - margin + uncharged and idle + overhead = cost of the GPUs, in each pool", _costs_reconciled
    ),
    CloseCheck("every sample of the month is rolled up", _samples_rolled_up),
    CloseCheck("the measured use of every charged line is up to date", _evidence_up_to_date, after_end=True),
    CloseCheck(SAMPLES_ARRIVED, _samples_arrived),
    CloseCheck(
        "charge lines sum to the cells and lines of the statement, and cents to its total",
        _sums_equal_charges,
        quick=False,
    ),
)
# The audit is also slow. It runs last, and only if the other checks pass.
SLOW_CONDITIONS = (*(check.condition for check in CHECKS if not check.quick), AUDITED)
CONDITIONS_AFTER_END = frozenset(check.condition for check in CHECKS if check.after_end)


def audit_check(month: date, now: datetime) -> dict[str, Any]:
    """Return the result of the audit of the ledger, in the form of ``close_checks``.

    The audit reads all lines of the month, which may take a minute. It runs when a month is being
    closed, and in rehearsals that include the audit.
    """
    found = [str(each) for each in islice(audit_month(month, now), SHOWN_DIFFERENCES)]
    return _check_result(AUDITED, not found, {"differences": found})


def passed_checks(month: date, now: datetime, missing_samples_reason: str) -> list[dict[str, Any]]:
    """Run the checks of a close and return their results.

    Raises OperationRejected for the first failed check. Missing samples are excused by a reason.
    """
    found = close_checks(month)
    missing = missing_samples(found)
    if not _failed_checks(found) and (not missing or missing_samples_reason):
        found.append(audit_check(month, now))
    failed = _failed_checks(found)
    numbers: dict[str, Any] = {"month": f"{month:%Y-%m}"}
    if failed:
        numbers |= {"check": failed[0]["check"], "figures": failed[0]["figures"]}
        raise OperationRejected("month_check_failed", numbers, field="month")
    if missing and not missing_samples_reason:
        numbers |= {"hosts": [entry["host"] for entry in missing[:10]], "count": len(missing)}
        raise OperationRejected("month_samples_missing", numbers, field="missing_samples_reason")
    return found


def _failed_checks(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the failed checks that no reason can excuse."""
    return [check for check in found if not check["ok"] and check["check"] != SAMPLES_ARRIVED]


def _names_without_cost_centre(month: date) -> dict[str, list[str]]:
    """Return the projects and the dedicated pools, with their teams, whose charged lines have no cost centre.

    Also return the teams whose part of idle time has none. A line that was reversed does not count. At most
    20 names of each kind are returned.
    """
    lines = Charge.objects.filter(UNMAPPED_LINE, month=month, bucket__in=CHARGED_BUCKETS)
    lines = lines.exclude(corrections__reversal=True)
    projects = lines.exclude(project=None).values_list("project__name", "project__team__name")
    pools = lines.filter(project=None).values_list("pool__name", "pool__team__name")
    # A team that has no charge of its own has no cost centre to which its part of idle time could go.
    shares = StatementLine.objects.filter(statement__month=month, idle_share=True, cost_centre="")
    teams = shares.exclude(charged_cents=0).values_list("team__name", flat=True)
    found = {
        "unmapped projects": {f"{name} of {team}" for name, team in projects.order_by()},
        "unmapped dedicated pools": {f"{name} of {team}" for name, team in pools.order_by()},
        "teams that pay for idle time without a cost centre": set(teams.order_by()),
    }
    return {kind: sorted(names)[:MAX_NAMES] for kind, names in found.items() if names}


def _undecided_adjustments(month: date) -> list[dict[str, str]]:
    """Return the proposed adjustments of a month with their authors, who may not approve them."""
    waiting = Adjustment.objects.filter(statement__month=month, state=AdjustmentState.PROPOSED)
    rows = waiting.order_by("pk").values_list("number", "author_name", "cost_centre", "amount")[:MAX_NAMES]
    return [
        {"number": number, "author": author, "cost_centre": centre, "amount": str(amount)}
        for number, author, centre, amount in rows
    ]


def missing_samples(checks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the hosts that still owe samples, from the results of ``close_checks``.

    Each entry has the keys ``host``, ``hours`` and ``lost_seconds``.
    """
    samples = next(check for check in checks if check["check"] == SAMPLES_ARRIVED)
    return list(samples["figures"][HostHour.State.WAITING])


def _hosts(*queries: QuerySet[Any]) -> dict[str, list[str]]:
    """Return the names of the hosts behind a failed check, at most 20; {} if there is none."""
    names = sorted({name for query in queries for (name,) in query.order_by().distinct()[: MAX_NAMES + 1]})
    return {"hosts": names[:MAX_NAMES]} if names else {}


def _check_result(condition: str, ok: bool, figures: dict[str, Any]) -> dict[str, Any]:
    return {"check": condition, "ok": ok, "figures": figures}


def _gpus_with_wrong_seconds(month: date, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """Return the GPUs whose lines do not sum to the time of the GPU that is charged in the month.

    The slot-seconds of a GPU's lines must equal 840 times its charged seconds. Lines that correct older
    months do not change the sum, because reversals and new lines cancel out.
    """
    written = dict(
        Charge.objects.filter(month=month)
        .values_list("gpu")
        .annotate(slot_sum=Sum("slot_seconds"))
        .order_by("gpu")
    )
    wrong = []
    spans = ChargedUntil.objects.filter(since__lt=end, until__gt=start)
    for gpu, host, since, until in spans.values_list("gpu", "gpu__host__name", "since", "until"):
        wanted = int((min(until, end) - max(since, start)).total_seconds()) * SLOTS_PER_GPU
        if written.get(gpu, 0) != wanted:
            wrong.append({"gpu": gpu, "host": host, "slot_seconds": written.get(gpu, 0), "expected": wanted})
    return wrong
