"""Measure the charging, the audit and the close of a month.

A separate process charges the month, so that its memory figure does not include other steps.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

AFTER_MIDNIGHT = timedelta(minutes=2)
KIB_PER_MIB = 1024
USER_TICKS, SYSTEM_TICKS = 11, 12  # places in /proc/PID/stat, counted after the name of the program


def charge_in_own_process(start: datetime, end: datetime) -> dict[str, Any]:
    """Charge ``[start, end)`` in a new process and return its figures. See ``charge_month``."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_charge_process, (start, end))


def _charge_process(start: datetime, end: datetime) -> dict[str, Any]:
    import django

    django.setup()
    figures = charge_month(start, end)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**figures, "rss_mb": round(peak / KIB_PER_MIB, 1)}


def charge_month(start: datetime, end: datetime) -> dict[str, Any]:
    """Charge ``[start, end)`` as after an outage of the whole month.

    Charging runs until every end of work is settled, and then once more without new facts. Returns the number
    of lines, the lines per second, and the time of the last run. The lines per second include the work for
    evidence, settlement, sums and cents. ``charge_cpu_s`` is the processor time of this process and of the
    database sessions. It depends less on the load of the machine than the other times.
    """
    from telemetry.models import Charge
    from telemetry.money.charges import charge_all_gpus

    runs, now = 0, end + AFTER_MIDNIGHT
    began, cpu_before = time.perf_counter(), _cpu_seconds()
    while runs == 0 or _facts_wait():
        charge_all_gpus(now)
        runs += 1
    seconds, cpu_seconds = time.perf_counter() - began, _cpu_seconds() - cpu_before
    began = time.perf_counter()
    charge_all_gpus(now)
    rerun = time.perf_counter() - began
    lines = Charge.objects.filter(start__lt=end).count()
    return {
        "lines": lines,
        "lines_per_s": round(lines / seconds, 1),
        "charge_s": round(seconds, 2),
        "charge_cpu_s": round(cpu_seconds, 2),
        "charge_runs": runs,
        "rerun_s": round(rerun, 3),
    }


def _cpu_seconds() -> float:
    """Return the processor time of this process and of the open database sessions, all on one machine."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        sessions = [pid for (pid,) in cursor.fetchall()]
    return time.process_time() + sum(map(_session_seconds, sessions))


def _session_seconds(session: int) -> float:
    # The fields after the name of the program, which may contain spaces. See proc(5).
    fields = Path(f"/proc/{session}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])) / os.sysconf("SC_CLK_TCK")


def _facts_wait() -> bool:
    """Return True if charged work has ended and its end is not settled yet."""
    from django.db.models import F

    from scheduler.models import Allocation

    ended = Allocation.objects.filter(settledallocation=None, period__endswith__isnull=False)
    return ended.filter(unit__gpu__charged__until__gte=F("period__endswith")).exists()


def close_and_audit(month: date, now: datetime, closer: Any) -> dict[str, Any]:
    """Close the month. Return the time of the close without its audit, and the time of the audit.

    The audit is that of the close: of charge lines, adjustments and cents.

    ``audit_differences`` is the number of differences that the audit finds. Raises OperationRejected if a
    check of the close fails.
    """
    from telemetry.audit.ledger_audit import audit_month
    from telemetry.money import close_checks, statements

    audited: dict[str, Any] = {}

    def timed_audit(*arguments: Any) -> dict[str, Any]:
        began = time.perf_counter()
        found = list(audit_month(*arguments))
        audited.update(audit_s=round(time.perf_counter() - began, 2), audit_differences=len(found))
        for difference in found[:10]:
            print(f"audit: {difference}")
        return close_checks._check_result("every line agrees with the facts", not found, {})

    began = time.perf_counter()
    with mock.patch.object(close_checks, "audit_check", timed_audit):
        statements.close_month(month=month, closed_by=closer, now=now)
    seconds = time.perf_counter() - began
    return {"close_s": round(seconds - audited["audit_s"], 2), **audited}


def amount_differences(month: date) -> dict[str, Any]:
    """Return the number of wrong sums of cents, and the difference between the sides of the cost equation.

    ``telemetry.money.reconciliation`` has the equation. The differences of the pools are added up without
    their signs.
    """
    from telemetry.ledger.cents import cent_differences
    from telemetry.models import Statement
    from telemetry.money.reconciliation import reconcile_costs
    from telemetry.money.statements import statement_totals
    from telemetry.reads.chargeback import CHARGE_DIMENSIONS, charges_by

    found = cent_differences(Statement.objects.get(month=month).pk)
    charged = Decimal(statement_totals(month)["charged"])
    for dimension in CHARGE_DIMENSIONS:
        table = charges_by(dimension, month)
        if table.charged != charged:
            found.append(f"by {dimension}: {table.charged}, statement: {charged}")
    for sentence in found:
        print(f"cents: {sentence}")
    imbalance = sum((abs(pool.total - pool.cost) for pool in reconcile_costs(month)), Decimal(0))
    return {"cent_differences": len(found), "conservation_difference": f"{imbalance:.6f}"}
