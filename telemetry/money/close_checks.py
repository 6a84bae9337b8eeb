"""Check that a month is complete and consistent before it is closed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from itertools import islice
from typing import Any

from django.db.models import Count, F, Q, QuerySet, Sum

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.rejection import OperationRejected
from scheduler.models import Gpu
from telemetry.audit.ledger_audit import audit_ledger
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.cost_centres.payers import names_of_payers, unsettled_payers
from telemetry.ledger.cents import cent_differences
from telemetry.ledger.sums import sum_differences
from telemetry.models import (
    UNMAPPED_LINE,
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

MAX_NAMES = 20
SHOWN_DIFFERENCES = 5


def close_checks(month: date) -> list[dict[str, Any]]:
    """Return the results of all checks that a month must pass before it is closed.

    Each result has the keys ``check`` (the condition in words), ``ok`` (True or False) and ``figures`` (the
    numbers behind the result).
    """
    start, end = month_bounds(month)
    behind = ChargedUntil.objects.filter(until__lt=end, since__lt=end)
    behind = behind.filter(Q(gpu__retired_at=None) | Q(gpu__retired_at__gte=end))
    never = Gpu.objects.filter(charged=None, created_at__lt=end)
    # Loaded history is charged backwards in time. A month can be closed only when each of its GPUs is charged
    # from the creation of the GPU.
    late = ChargedUntil.objects.filter(since__gt=start, gpu__created_at__lt=end).filter(
        since__gt=F("gpu__created_at")
    )
    month_lines = Charge.objects.filter(month=month)
    unpriced = month_lines.filter(price=None).values("model").annotate(count=Count("pk")).order_by("model")
    left = reconcile_costs(month)
    seconds = _gpus_with_wrong_seconds(month, start, end)
    first_hour = start.replace(minute=0, second=0)  # zones may differ from UTC by parts of an hour
    due = RollupDue.objects.filter(bucket__gte=first_hour, bucket__lt=end)
    unmapped = _names_without_cost_centre(month)
    transfers = names_of_payers(unsettled_payers(end))[:MAX_NAMES]
    evidence_due = EvidenceDue.objects.filter(hour__gte=first_hour, hour__lt=end)
    recorded = hours_recorded_until()
    samples = hosts_by_state(first_hour, end)
    statement = Statement.objects.filter(month=month).first()
    differences = [str(each) for each in sum_differences(month)]
    cents = cent_differences(statement.pk) if statement else []
    return [
        _check_result("something was charged in the month", month_lines.exists(), {}),
        _check_result(
            "every GPU is charged to the end of the month",
            not behind.exists() and not never.exists(),
            {
                "behind": behind.count(),
                "never": never.count(),
                **_hosts(behind.values_list("gpu__host__name"), never.values_list("host__name")),
            },
        ),
        _check_result(
            "every GPU is charged from the time it was added",
            not late.exists(),
            {"later": late.count(), **_hosts(late.values_list("gpu__host__name"))},
        ),
        _check_result(
            "every line has a price", not unpriced.exists(), {"models": [row["model"] for row in unpriced]}
        ),
        _check_result(
            "every charged line has a cost centre",
            not unmapped,
            unmapped,
        ),
        _check_result("every change of cost centres is charged", not transfers, {"not charged": transfers}),
        _check_result(
            "every second of every GPU is in exactly one bucket", not seconds, {"gpus": seconds[:20]}
        ),
        _check_result(
            "charged - margin + uncharged and idle + overhead = cost of the GPUs, in each pool",
            all(pool.holds for pool in left),
            {
                "pools": [
                    {"pool": pool.pool_name, "left": str(pool.total), "cost": str(pool.cost)} for pool in left
                ]
            },
        ),
        _check_result(
            "every sample of the month is rolled up",
            not due.exists(),
            {"due": due.count(), **_hosts(due.values_list("host__name"))},
        ),
        _check_result(
            "the measured use of every charged line is up to date",
            not evidence_due.exists() and (recorded is None or recorded >= end),
            {
                "due": evidence_due.count(),
                "hours_recorded_until": recorded.isoformat() if recorded else None,
                **_hosts(evidence_due.values_list("host__name")),
            },
        ),
        _check_result(SAMPLES_ARRIVED, not samples[HostHour.State.WAITING], samples),
        _check_result(
            "charge lines sum to the cells and lines of the statement, and cents to its total",
            not differences and not cents,
            {"differences": differences[:5], "cents": cents[:5]},
        ),
    ]


def audit_check(month: date, now: datetime) -> dict[str, Any]:
    """Return the result of the audit of the ledger, in the form of ``close_checks``.

    The audit reads all lines of the month, which may take a minute. It runs only when the month is closed.
    """
    found = [str(each) for each in islice(audit_ledger(month, now), SHOWN_DIFFERENCES)]
    return _check_result("every line agrees with the facts", not found, {"differences": found})


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
