"""Collect the age of the samples and the errors of the clocks of hosts, for alerts."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Min, QuerySet

from scheduler.models import Host
from scheduler.state.states import LeaseState
from telemetry.alerts.alert_values import AlertEvaluation, KindValues, SubjectValue
from telemetry.core.alerts.judgement import AlertValue
from telemetry.core.alerts.kinds import AlertKind
from telemetry.models import ReadingFault

CLOCK_KINDS = (ReadingFault.Kind.CLOCK_CORRECTED, ReadingFault.Kind.CLOCK_REFUSED)


def host_values(evaluation: AlertEvaluation) -> KindValues:
    """Return the values of all hosts that answer. Runs three queries.

    A silent host has a notice of its own and no alert about its samples.
    """
    answering = Host.objects.filter(lease_state__in=(LeaseState.ALIVE, LeaseState.SUSPECT))
    pools = dict(answering.values_list("pk", "pool_id"))
    return {
        AlertKind.TELEMETRY_GAP: _gaps(evaluation, answering),
        AlertKind.CLOCK_SKEW: _skews(evaluation, pools),
    }


def _gaps(evaluation: AlertEvaluation, answering: QuerySet[Host]) -> dict[int, SubjectValue]:
    """Return the minutes since the last sample of each host with GPUs.

    If a host has never sent a sample, they count since its first sync, which reported its GPUs.
    """
    present = answering.filter(gpus__retired_at=None, gpus__isnull=False).order_by()
    rows = present.values_list("pk", "pool_id", "samplewatermark__sampled_until")
    values = {}
    for host, pool, until, reported_at in rows.annotate(reported_at=Min("gpus__created_at")):
        since = until or reported_at
        minutes = max(0.0, round((evaluation.now - since).total_seconds() / 60, 1))
        evidence = {"sampled_until": None if until is None else until.timestamp()}
        values[host] = SubjectValue(pool, AlertValue(minutes, minutes, evidence), {"host_id": host})
    return values


def _skews(evaluation: AlertEvaluation, pools: dict[int, int]) -> dict[int, SubjectValue]:
    """Return the last measured error of each clock, 0 if none was measured in the window."""
    longest = timedelta(minutes=evaluation.rules.longest_minutes(AlertKind.CLOCK_SKEW))
    faults = ReadingFault.objects.filter(
        kind__in=CLOCK_KINDS, host__in=pools, last_at__gt=evaluation.now - longest, last_value__isnull=False
    )
    last = {fault.host_id: (fault.last_at, fault.last_value or 0.0) for fault in faults.order_by("last_at")}
    values = {}
    for host in last.keys() | (evaluation.open_subjects(AlertKind.CLOCK_SKEW) & pools.keys()):
        at, offset = last.get(host, (evaluation.now - longest, 0.0))
        begin, end = (
            abs(offset) if at > start else 0.0
            for start in evaluation.window_starts(pools[host], AlertKind.CLOCK_SKEW, evaluation.now)
        )
        value = AlertValue(begin, end, {"offset": round(offset, 1)})
        values[host] = SubjectValue(pools[host], value, {"host_id": host})
    return values
