"""Check that a month is complete and consistent before it is closed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from itertools import islice
from typing import Any

from django.db.models import Count, F, Q, Sum

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Gpu
from telemetry.audit.ledger_audit import audit_ledger
from telemetry.core.charge_model import CHARGED_BUCKETS
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
    due = RollupDue.objects.filter(bucket__gte=start, bucket__lt=end).count()
    unmapped = _names_without_cost_centre(month)
    evidence_due = EvidenceDue.objects.filter(hour__gte=start, hour__lt=end).count()
    recorded = hours_recorded_until()
    samples = hosts_by_state(start, end)
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
            },
        ),
        _check_result(
            "every GPU is charged from the time it was added", not late.exists(), {"later": late.count()}
        ),
        _check_result(
            "every line has a price", not unpriced.exists(), {"models": [row["model"] for row in unpriced]}
        ),
        _check_result(
            "every charged line has a cost centre",
            not unmapped,
            unmapped,
        ),
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
        _check_result("every sample of the month is rolled up", due == 0, {"due": due}),
        _check_result(
            "the measured use of every charged line is up to date",
            evidence_due == 0 and (recorded is None or recorded >= end),
            {"due": evidence_due, "hours_recorded_until": recorded.isoformat() if recorded else None},
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


def _names_without_cost_centre(month: date) -> dict[str, list[str]]:
    """Return the projects and the dedicated pools with charged lines that have no cost centre.

    Also return the teams whose part of idle time has none. A line that was reversed does not count. At most
    20 names of each kind are returned.
    """
    lines = Charge.objects.filter(UNMAPPED_LINE, month=month, bucket__in=CHARGED_BUCKETS)
    lines = lines.exclude(corrections__reversal=True)
    projects = lines.exclude(project=None).values_list("project__name", flat=True)
    pools = lines.filter(project=None).values_list("pool__name", flat=True)
    # A team that has no charge of its own has no cost centre to which its part of idle time could go.
    shares = StatementLine.objects.filter(statement__month=month, idle_share=True, cost_centre="")
    teams = shares.exclude(charged_cents=0).values_list("team__name", flat=True)
    found = {
        "unmapped projects": set(projects.order_by()),
        "unmapped dedicated pools": set(pools.order_by()),
        "teams that pay for idle time without a cost centre": set(teams.order_by()),
    }
    return {kind: sorted(names)[:MAX_NAMES] for kind, names in found.items() if names}


def missing_samples(checks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the hosts that still owe samples, from the results of ``close_checks``.

    Each entry has the keys ``host``, ``hours`` and ``lost_seconds``.
    """
    samples = next(check for check in checks if check["check"] == SAMPLES_ARRIVED)
    return list(samples["figures"][HostHour.State.WAITING])


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
    for gpu, since, until in ChargedUntil.objects.filter(since__lt=end, until__gt=start).values_list(
        "gpu", "since", "until"
    ):
        wanted = int((min(until, end) - max(since, start)).total_seconds()) * SLOTS_PER_GPU
        if written.get(gpu, 0) != wanted:
            wrong.append({"gpu": gpu, "slot_seconds": written.get(gpu, 0), "expected": wanted})
    return wrong
