"""Check the lags of data and of the audit stream, the hosts, the clocks, and the database."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

from django.conf import settings
from django.db import connection
from django.db.models import Count, Exists, Min, OuterRef, Q, Sum

from portal.models import AuditProgress, AuditSeal
from portal.processes.store_checks import database_clock_offset
from portal.reads.system.checks import HealthCheck, HealthLimit, HealthState, measured
from portal.reads.system.process_checks import seconds_since
from portal.wording import system_texts
from scheduler.models import ClockReading, Gpu, Host
from scheduler.state.states import LeaseState
from telemetry.models import ReadingFault
from telemetry.reads.usage_filters import data_freshness

ROLLUP_LIMIT = HealthLimit(300, 900, "s")
CHARGE_LIMIT = HealthLimit(2 * 3600, 3 * 3600, "s")
AUDIT_STREAM_LIMIT = HealthLimit(300, 3600, "s")
HOST_LIMIT = HealthLimit(0, None)
CLOCK_OFFSET_LIMIT = HealthLimit(1, 5, "s")
DISK_LIMIT = HealthLimit(0.2, 0.05, "share", falling=True)
SIZE_LIMIT = HealthLimit(None, None, "bytes")
CONNECTION_LIMIT = HealthLimit(0.7, 0.9, "share")
PARTITION_LIMIT = HealthLimit(2, 1, "days", falling=True)
CLOCK_FAULT_WINDOW = timedelta(hours=1)
CLOCK_STEP_WINDOW = timedelta(days=1)
_DATABASE_SQL = """
SELECT pg_database_size(current_database()),
    (SELECT count(*)::float8 FROM pg_stat_activity WHERE datid IS NOT NULL)
        / current_setting('max_connections')::float8,
    (SELECT to_date(max(right(part.relname, 8)), 'YYYYMMDD') FROM pg_inherits AS child
        JOIN pg_class AS part ON part.oid = child.inhrelid
        WHERE child.inhparent = 'telemetry_sample'::regclass AND part.relname ~ '_[0-9]{8}$')
"""


def lag_checks(now: datetime) -> Iterator[HealthCheck]:
    """Check the age of rollups and charges. Takes two queries.

    If no host answers, no samples arrive, and the age of rollups says nothing about the worker.
    """
    fresh = data_freshness()
    present = Gpu.objects.filter(host=OuterRef("pk"), retired_at=None)
    reports = Host.objects.filter(Exists(present), lease_state=LeaseState.ALIVE).exists()
    rolled_up = seconds_since(fresh.rolled_up_until, now) if reports else None
    yield measured("rollups", rolled_up, ROLLUP_LIMIT)
    yield measured("charges", seconds_since(fresh.charged_until, now), CHARGE_LIMIT)


def audit_stream_check(now: datetime) -> HealthCheck:
    """Check how long sealed audit records have waited for the receiver. Takes two queries.

    The value is the age of the oldest seal that the receiver does not have; 0 if it has all.
    """
    if not settings.GPUPOOL_AUDIT_STREAM:
        return measured("audit_stream", None, AUDIT_STREAM_LIMIT, text=system_texts.NOT_SET)
    progress = AuditProgress.objects.filter(pk=1).first() or AuditProgress()
    waiting = AuditSeal.objects.filter(number__gt=progress.delivered_seal)
    found = waiting.aggregate(oldest=Min("sealed_at"), records=Sum("events"))
    lag = seconds_since(found["oldest"], now) or 0.0
    text = system_texts.audit_stream_text(lag, found["records"] or 0, progress.failure)
    return measured("audit_stream", lag, AUDIT_STREAM_LIMIT, text=text)


def host_checks(now: datetime) -> Iterator[HealthCheck]:
    """Check contact, disks and clocks of the hosts. Takes two queries."""
    # A host without a credential is silent on purpose: it was revoked.
    quiet = Q(lease_state__in=(LeaseState.SUSPECT, LeaseState.SILENT)) & ~Q(credential_hash="")
    counts = Host.objects.filter(removed_at=None).aggregate(
        silent=Count("pk", filter=quiet), full=Count("pk", filter=Q(disk_full=True))
    )
    yield measured("hosts_silent", counts["silent"], HOST_LIMIT)
    yield measured("hosts_full", counts["full"], HOST_LIMIT)
    since = now - CLOCK_FAULT_WINDOW
    wrong = ReadingFault.objects.filter(
        day__gte=since.astimezone(UTC).date(),
        last_at__gte=since,
        kind__in=(ReadingFault.Kind.CLOCK_CORRECTED, ReadingFault.Kind.CLOCK_REFUSED),
        host__removed_at=None,
    )
    found = list(wrong.order_by().values_list("host_id", "kind", "last_value"))
    offset = max((abs(value or 0.0) for _, _, value in found), default=0.0)
    state = HealthState.ATTENTION if found else HealthState.GOOD
    if any(kind == ReadingFault.Kind.CLOCK_REFUSED for _, kind, _ in found):
        state = HealthState.BAD
    text = system_texts.WITHIN_LIMITS
    if found:
        text = system_texts.host_clock_text(len({host for host, _, _ in found}), offset)
    yield HealthCheck("host_clocks", "", offset, "s", text, state, system_texts.CLOCK_LIMIT)


def server_clock_check(now: datetime) -> Iterator[HealthCheck]:
    """Check whether the clock of the server was set in the last day. Takes one query."""
    row = ClockReading.objects.filter(pk=1).first()
    since = seconds_since(row.set_at, now) if row else None
    if row is None:
        state, text = HealthState.UNKNOWN, system_texts.UNKNOWN
    elif since is not None and since <= CLOCK_STEP_WINDOW.total_seconds():
        state = HealthState.ATTENTION
        text = system_texts.CLOCK_SET.format(ago=system_texts.value_text(since, "s"))
    else:
        state, text = HealthState.GOOD, system_texts.CLOCK_STEADY
    yield HealthCheck("server_clock", "", since, "s", text, state, system_texts.SERVER_CLOCK_LIMIT)


def storage_checks(now: datetime) -> Iterator[HealthCheck]:
    """Check the disk of this process, and the database. Takes two queries."""
    try:
        disk = shutil.disk_usage(settings.GPUPOOL_STATE)
        free: float | None = disk.free / disk.total
    except OSError:
        free = None
    yield measured("state_disk", free, DISK_LIMIT)
    with connection.cursor() as cursor:
        cursor.execute(_DATABASE_SQL)
        size, connections, last_partition = cursor.fetchone()
    yield measured("database_clock", database_clock_offset(), CLOCK_OFFSET_LIMIT)
    yield measured("database_size", size, SIZE_LIMIT)
    yield measured("database_connections", connections, CONNECTION_LIMIT)
    yield measured("partitions", _days_ahead(last_partition, now), PARTITION_LIMIT)


def _days_ahead(last: date | None, now: datetime) -> float | None:
    return None if last is None else (last - now.astimezone(UTC).date()).days
