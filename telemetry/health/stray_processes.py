"""Store stray processes. A stray process uses a GPU and belongs to no workload that holds this GPU.

Each process is recorded as one event when it is first seen. Some agents report only the number of stray
processes. In this case, one event per unit and hour is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Exists, F, OuterRef

from agent.protocol import StraySeen
from scheduler.coordination import locks
from scheduler.models import Gpu, Host, Unit
from scheduler.state import nudge
from telemetry.models import HealthEvent, Stray

STRAY_CODE = "stray:process"
MAX_STRAYS_PER_HOST = 500
INT4_MAX = 2**31 - 1
# A count that arrives within this time after a report with named processes adds no event.
COUNT_DEDUPLICATION_WINDOW = timedelta(minutes=2)


@transaction.atomic
def sync_stray_rows(host: Host, seen: Sequence[StraySeen], now: datetime) -> bool:
    """Make the host's stray rows match its report. Return True if a process is new.

    Rows of processes that are no longer reported are marked as gone. Processes on GPUs that the host does not
    have are ignored.
    """
    locks.hosts([host.pk])
    # A GPU may have several rows. The row that is not retired comes last and overwrites the others in the
    # dict.
    rows = Gpu.objects.filter(host=host).order_by(F("retired_at").asc(nulls_last=True), "pk")
    gpus = {gpu.uuid: gpu for gpu in rows}
    known = {(row.gpu_id, row.pid, row.started): row for row in Stray.objects.filter(host=host, gone_at=None)}
    found_new = False
    for process in seen[:MAX_STRAYS_PER_HOST]:
        gpu = gpus.get(process.gpu)
        if gpu is None or not (0 < process.pid < INT4_MAX and 0 <= process.started < 2**62):
            continue
        row = known.pop((gpu.pk, process.pid, process.started), None)
        columns = {
            "user": process.user[:64],
            "name": process.name[:64],
            "memory_mib": process.memory_mib
            if process.memory_mib is not None and 0 <= process.memory_mib < INT4_MAX
            else None,
            "run": process.run[:40],
            "done": process.done[:200],
            "last_seen": now,
        }
        if row is not None:
            Stray.objects.filter(pk=row.pk).update(**columns)
            continue
        stray = Stray.objects.create(
            host=host, gpu=gpu, pid=process.pid, started=process.started, first_seen=now, **columns
        )
        HealthEvent.objects.get_or_create(
            host=host,
            event_id=stray_event_id(stray),
            defaults={
                "gpu": gpu,
                "source": "agent",
                "code": STRAY_CODE,
                "detail": stray_detail(stray),
                "at": now,
                "received_at": now,
            },
        )
        found_new = True
    Stray.objects.filter(pk__in=[row.pk for row in known.values()]).update(gone_at=now)
    nudge.pages(nudge.HOSTS)
    return found_new


def stray_detail(stray: Stray) -> str:
    """Return a description of the process for people: name, pid, user and memory."""
    memory = "" if stray.memory_mib is None else f", {stray.memory_mib} MiB"
    whose = "a workload that does not hold this GPU" if stray.run else "no workload"
    process = f"{stray.name or 'a process'} (pid {stray.pid}, user {stray.user or 'unknown'}{memory})"
    return f"{process} belongs to {whose}"


def stray_event_id(stray: Stray) -> str:
    """Return the id of the event that reports the first observation of the process."""
    return f"stray:{stray.pk}"


def previously_reported(events: Sequence[HealthEvent]) -> set[int]:
    """Return the ids of the events about processes that the host had reported earlier.

    Example: a process that begins to use a second GPU is reported again. Runs one query.
    """
    named = {event.event_id: event.pk for event in events}
    earlier = Stray.objects.filter(
        host=OuterRef("host"),
        pid=OuterRef("pid"),
        started=OuterRef("started"),
        first_seen__lt=OuterRef("first_seen"),
    )
    pks = [int(pk) for pk in (name.removeprefix("stray:") for name in named) if pk.isdecimal()]
    return {named[stray_event_id(row)] for row in Stray.objects.filter(Exists(earlier), pk__in=pks)}


def record_stray_counts(seen: Mapping[tuple[int, int], tuple[float, int]], now: datetime) -> None:
    """Record one event per (host, unit) and hour for stray processes that agents have only counted.

    ``seen`` gives (time in seconds since the epoch, number of processes) by (host id, unit id). Hosts that
    have reported the processes themselves are skipped.
    """
    if not seen:
        return
    reported_hosts = set(
        Stray.objects.filter(
            host__in={host for host, _ in seen}, last_seen__gt=now - COUNT_DEDUPLICATION_WINDOW
        ).values_list("host_id", flat=True)
    ) | set(
        Stray.objects.filter(host__in={host for host, _ in seen}, gone_at=None).values_list(
            "host_id", flat=True
        )
    )
    seen = {key: count for key, count in seen.items() if key[0] not in reported_hosts}
    units = {unit.pk: unit for unit in Unit.objects.filter(pk__in={unit for _, unit in seen})}
    events = []
    for (host, unit), (seconds, count) in sorted(seen.items()):
        at = datetime.fromtimestamp(seconds, UTC)
        events.append(
            HealthEvent(
                host_id=host,
                gpu_id=units[unit].gpu_id,
                event_id=f"stray:{unit}:{at:%Y%m%d%H}",
                source="agent",
                code=STRAY_CODE,
                detail=f"{count} process{'es' if count != 1 else ''} outside workloads on {units[unit].uuid}",
                at=at,
                received_at=now,
            )
        )
    HealthEvent.objects.bulk_create(events, ignore_conflicts=True)
