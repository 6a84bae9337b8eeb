"""Request diagnostics of GPUs, send them to hosts, and act on the results.

In pools with ``diagnose_after_quarantine``, a quarantined GPU is diagnosed when no workload holds it. A GPU
that passes returns to service. A GPU that fails is taken out of service until an operator returns it.
There is one exception: a GPU in service stays there if too many GPUs of its pool were taken out shortly
before. A GPU in service is diagnosed only while it is idle. The host interrupts this diagnostic if work is to
start on the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Count, Exists, Max, OuterRef, Q, QuerySet

from agent.protocol import CheckSeen, DiagnosticSeen, DiagnosticWanted
from scheduler.coordination import locks
from scheduler.core.rejection import OperationRejected
from scheduler.models import Allocation, BoundUnit, Diagnostic, Gpu, GpuStateChange, Host, Pool
from scheduler.services.hosts import (
    change_gpu_repair,
    change_host_repair,
    return_gpu,
    return_host,
    take_out_gpu,
)
from scheduler.state import nudge
from scheduler.state.states import (
    AdminState,
    DiagnosticState,
    LeaseState,
    RepairState,
    accepts_work,
    change_state,
)
from scheduler.sync.host_inventory import NOT_REPORTED
from scheduler.sync.wire_values import parse_public_id, parse_timestamp

OPEN_DIAGNOSTIC_STATES = (DiagnosticState.WANTED, DiagnosticState.RUNNING)
# The server waits for the timeout plus this margin, because the host may wait for the GPU's lock or may be
# offline for a short time.
DIAGNOSTIC_ANSWER_MARGIN = timedelta(seconds=120)
DIAGNOSTIC_RETRY_AFTER = timedelta(minutes=10)  # time from a stopped diagnostic to the next try
# The maximum number of diagnostics of a GPU after it was quarantined, or after its host was closed because of
# failed attempts. After the last one, an operator has to check the GPU.
MAX_DIAGNOSTIC_TRIES = 3
# Periodic diagnostics are requested while fewer GPUs of the pool than a limit have an open diagnostic. The
# limit is the number of GPUs of the pool divided by PERIODIC_SHARE, and at least 1.
PERIODIC_SHARE = 8
TAKE_OUT_WINDOW = timedelta(hours=1)
# A failed diagnostic takes out a GPU in service while fewer other GPUs of the pool than a limit are out after
# a diagnostic that failed within TAKE_OUT_WINDOW. The limit is the number of GPUs of the pool divided by
# TAKE_OUT_SHARE, and at least 1.
TAKE_OUT_SHARE = 8
MAX_CHECKS = 50


@transaction.atomic
def request_diagnostic(gpu: Gpu, *, why: Diagnostic.Why, now: datetime) -> Diagnostic:
    """Request a diagnostic of a GPU that no workload holds.

    A GPU that is quarantined or out gets the repair state ``diagnosing``. Raises OperationRejected
    ``gpu_is_held``, ``diagnostic_is_open``, ``geometry_is_changing``, ``host_does_not_answer`` or
    ``gpu_is_not_reported``.
    """
    host = locks.hosts([gpu.host_id])[gpu.host_id]
    fresh = Gpu.objects.get(pk=gpu.pk)
    if fresh.retired_at is not None or fresh.state_reason == NOT_REPORTED:
        raise OperationRejected("gpu_is_not_reported", (("gpu", fresh.index), ("host", host.name)))
    if fresh.repair_state == RepairState.RESHAPING:
        raise OperationRejected("geometry_is_changing", (("gpu", fresh.index), ("host", host.name)))
    if host.lease_state != LeaseState.ALIVE:
        raise OperationRejected("host_does_not_answer", (("host", host.name),))
    holders = Allocation.objects.filter(unit__gpu=fresh, period__upper_inf=True)
    holder = holders.values_list("workload__name", flat=True).first()
    if holder is not None:
        raise OperationRejected(
            "gpu_is_held", (("gpu", fresh.index), ("host", host.name), ("workload", holder))
        )
    if Diagnostic.objects.filter(gpu=fresh, state__in=OPEN_DIAGNOSTIC_STATES).exists():
        raise OperationRejected("diagnostic_is_open", (("gpu", fresh.index), ("host", host.name)))
    if fresh.repair_state in (RepairState.QUARANTINED, RepairState.OUT):
        change_gpu_repair(fresh, RepairState.DIAGNOSING, fresh.state_reason, now)
    made = Diagnostic.objects.create(host=host, gpu=fresh, why=why, created_at=now)
    gpu.repair_state = fresh.repair_state
    _notify(host.pk)
    return made


@transaction.atomic
def request_host_diagnostics(host: Host, *, why: Diagnostic.Why, now: datetime) -> list[Diagnostic]:
    """Request a diagnostic of each GPU of a host.

    A GPU that a workload holds, or that cannot be diagnosed for another reason, is skipped. A host that is
    quarantined or out has the repair state ``diagnosing`` until all results are known. Raises
    OperationRejected if no GPU can be diagnosed.
    """
    fresh = locks.hosts([host.pk])[host.pk]
    made, refused = [], OperationRejected("host_has_no_gpus", (("host", fresh.name),))
    for gpu in fresh.gpus.filter(retired_at=None).order_by("index"):
        try:
            made.append(request_diagnostic(gpu, why=why, now=now))
        except OperationRejected as no:
            refused = no
    if not made:
        raise refused
    if fresh.repair_state in (RepairState.QUARANTINED, RepairState.OUT):
        change_host_repair(fresh, RepairState.DIAGNOSING, fresh.state_reason, now)
        host.repair_state = fresh.repair_state
    return made


def operator_diagnostics(pool: Pool) -> dict[str, int]:
    """Return the names of diagnostics that the operator installed on hosts of a pool.

    The values are the numbers of hosts that report the diagnostic.
    """
    counts: dict[str, int] = {}
    for told in Host.objects.filter(pool=pool).values_list("hardware__reported__diagnostics", flat=True):
        for name in told or ():
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def desired_diagnostics(host: Host, pool: Pool) -> list[DiagnosticWanted]:
    """Return the open diagnostics of a host, in the form of the desired state."""
    rows = (
        Diagnostic.objects.filter(host=host, state__in=OPEN_DIAGNOSTIC_STATES)
        .select_related("gpu")
        .order_by("pk")
    )
    return [
        DiagnosticWanted(
            str(row.public_id), row.gpu.uuid, pool.diagnostic_tool, float(pool.diagnostic_seconds)
        )
        for row in rows
    ]


# -- results ----------------------------------------------------------------------------------------


def may_take_gpu_out(host: Host, seen: Iterable[DiagnosticSeen]) -> bool:
    """Return True if storing these results may take a GPU out of service.

    The caller must then lock the pool before the host.
    """
    failed = [
        key
        for one in seen
        if one.state == DiagnosticState.FAILED and (key := parse_public_id(one.diagnostic)) is not None
    ]
    return (
        bool(failed)
        and Diagnostic.objects.filter(
            host=host, public_id__in=failed, state__in=OPEN_DIAGNOSTIC_STATES
        ).exists()
    )


def store_diagnostics(host: Host, seen: Iterable[DiagnosticSeen], now: datetime) -> None:
    """Store a host's reports of its open diagnostics. Reports of other diagnostics are ignored.

    The caller has locked the host. If ``may_take_gpu_out`` is True, the caller has locked the pool before.
    """
    told = {key: one for one in seen if (key := parse_public_id(one.diagnostic)) is not None}
    if not told:
        return
    rows = Diagnostic.objects.filter(
        host=host, public_id__in=list(told), state__in=OPEN_DIAGNOSTIC_STATES
    ).select_related("gpu")
    for row in rows.order_by("pk"):
        one = told[row.public_id]
        facts = {
            "tool": one.tool[:40],
            "simulated": host.simulated,
            "checks": [_stored_check(check) for check in one.checks[:MAX_CHECKS]],
            "detail": one.detail[:300],
            "started_at": _not_after(now, parse_timestamp(one.started_at)),
        }
        if one.state == DiagnosticState.RUNNING:
            if row.state == DiagnosticState.WANTED and change_state(
                row, "state", old=DiagnosticState.WANTED, new=DiagnosticState.RUNNING, **facts
            ):
                nudge.pages(nudge.HOSTS)
        elif one.state in (DiagnosticState.PASSED, DiagnosticState.FAILED, DiagnosticState.STOPPED):
            _end(row, DiagnosticState(one.state), now, **facts)


def _stored_check(check: CheckSeen) -> dict[str, object]:
    numbers = {str(name)[:40]: value for name, value in list(check.numbers.items())[:20] if _is_plain(value)}
    return {"name": check.name[:40], "passed": check.passed, "numbers": numbers, "detail": check.detail[:200]}


def _not_after(now: datetime, at: datetime | None) -> datetime | None:
    return min(at, now) if at else None


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) or (isinstance(value, str) and len(value) <= 100)


def _end(row: Diagnostic, new: DiagnosticState, now: datetime, **facts: object) -> None:
    """End a diagnostic and apply its result. The caller has locked the host."""
    if not change_state(row, "state", old=DiagnosticState(row.state), new=new, ended_at=now, **facts):
        return
    gpu = Gpu.objects.get(pk=row.gpu_id)
    if new == DiagnosticState.PASSED:
        if gpu.repair_state == RepairState.DIAGNOSING:
            return_gpu(gpu, reason="its diagnostic passed", now=now)
    elif new == DiagnosticState.FAILED and (
        gpu.repair_state != RepairState.WELL or _may_take_out_unattended(gpu, row, now)
    ):
        take_out_gpu(gpu, reason=f"its diagnostic failed: {row.detail}"[:300], now=now)
    elif gpu.repair_state == RepairState.DIAGNOSING:
        change_gpu_repair(gpu, RepairState.QUARANTINED, gpu.state_reason, now)
    _finish_host_diagnosis(row.host_id, now)
    _notify(row.host_id)


def _may_take_out_unattended(gpu: Gpu, row: Diagnostic, now: datetime) -> bool:
    """Return True if a GPU in service may be taken out without an operator.

    The result is False if diagnostics within TAKE_OUT_WINDOW have already taken out as many other GPUs of the
    pool as TAKE_OUT_SHARE allows. Many failures at once are rarely caused by broken GPUs. The cause may be a
    new driver or a bug.
    """
    # The caller has locked the pool. If two hosts report at the same time, the second report is stored after
    # the result of the first report.
    pool = row.host.pool_id
    failed = Diagnostic.objects.filter(
        host__pool=pool,
        state=DiagnosticState.FAILED,
        ended_at__gt=now - TAKE_OUT_WINDOW,
        gpu__repair_state=RepairState.OUT,
    ).exclude(gpu=gpu)
    gpus = Gpu.objects.filter(host__pool=pool, retired_at=None).count()
    return failed.values("gpu").distinct().count() < max(1, gpus // TAKE_OUT_SHARE)


def _finish_host_diagnosis(host_id: int, now: datetime) -> None:
    """Set the repair state of a host when the results of all its GPUs are known.

    A host that was closed after too many failed attempts returns to service if all its GPUs passed.
    """
    host = Host.objects.get(pk=host_id)
    if host.diagnostics.filter(state__in=OPEN_DIAGNOSTIC_STATES).exists():
        return
    states = set(host.gpus.filter(retired_at=None).values_list("repair_state", flat=True))
    if host.repair_state == RepairState.DIAGNOSING:
        if states == {RepairState.WELL}:
            change_host_repair(host, RepairState.WELL, "the diagnostics of its GPUs passed", now)
        elif RepairState.OUT in states:
            change_host_repair(host, RepairState.OUT, "the diagnostic of a GPU failed", now)
        else:
            change_host_repair(host, RepairState.QUARANTINED, host.state_reason, now)
    if host.tripped_at is None or host.admin_state != AdminState.CORDONED or states != {RepairState.WELL}:
        return
    passed = Diagnostic.objects.filter(
        host=host, state=DiagnosticState.PASSED, created_at__gte=host.tripped_at
    )
    if set(passed.values_list("gpu_id", flat=True)) >= set(
        host.gpus.filter(retired_at=None).values_list("pk", flat=True)
    ):
        return_host(host, reason="the diagnostics of its GPUs passed", now=now)


# -- sweep ------------------------------------------------------------------------------------------


def sweep_diagnostics(now: datetime) -> None:
    """End diagnostics that are overdue or whose host is silent, and request diagnostics that are due.

    This function is level-triggered: it reads the rows and does the work that is due.
    """
    _end_overdue(now)
    for gpu in _due_after_quarantine(now):
        _request_if_free(gpu, Diagnostic.Why.QUARANTINED, now)
    for gpu in _due_after_trip(now):
        _request_if_free(gpu, Diagnostic.Why.TRIPPED, now)
    for pool in Pool.objects.filter(diagnose_every_hours__gt=0).order_by("pk"):
        for gpu in _due_periodically(pool, now):
            _request_if_free(gpu, Diagnostic.Why.PERIODIC, now)


def _request_if_free(gpu: Gpu, why: Diagnostic.Why, now: datetime) -> None:
    try:
        request_diagnostic(gpu, why=why, now=now)
    except OperationRejected:
        return  # the GPU cannot be diagnosed now; the next tick tries again


def _end_overdue(now: datetime) -> None:
    late = Diagnostic.objects.filter(state__in=OPEN_DIAGNOSTIC_STATES).select_related("host__pool")
    for row in late.order_by("pk"):
        timeout = timedelta(seconds=row.host.pool.diagnostic_seconds) + DIAGNOSTIC_ANSWER_MARGIN
        silent = row.host.lease_state == LeaseState.SILENT
        if not silent and now - row.created_at < timeout:
            continue
        with transaction.atomic():
            locks.hosts([row.host_id])
            row.refresh_from_db()
            if row.state in OPEN_DIAGNOSTIC_STATES:
                why = "its host became silent" if silent else "its host did not answer"
                _end(row, DiagnosticState.STOPPED, now, detail=why)


def _idle_gpus(gpus: QuerySet[Gpu]) -> QuerySet[Gpu]:
    """Return the GPUs in ``gpus`` that are on a live host, are not held and have no open diagnostic."""
    held = Allocation.objects.filter(unit__gpu=OuterRef("pk"), period__upper_inf=True)
    diagnosed = Diagnostic.objects.filter(gpu=OuterRef("pk"), state__in=OPEN_DIAGNOSTIC_STATES)
    answering = gpus.filter(retired_at=None, host__lease_state=LeaseState.ALIVE)
    return answering.filter(~Exists(held), ~Exists(diagnosed)).select_related("host").order_by("pk")


def _due_after_quarantine(now: datetime) -> list[Gpu]:
    quarantined = Gpu.objects.filter(
        repair_state=RepairState.QUARANTINED, host__pool__diagnose_after_quarantine=True
    )
    due = []
    for gpu in _idle_gpus(quarantined).exclude(state_reason=NOT_REPORTED):
        # Count only diagnostics of the present quarantine. It began after the last recorded state that is
        # neither quarantined nor diagnosing. A diagnostic that was stopped returns the GPU to the same
        # quarantine.
        since = (
            GpuStateChange.objects.filter(gpu=gpu)
            .exclude(repair_state__in=(RepairState.QUARANTINED, RepairState.DIAGNOSING))
            .aggregate(last=Max("at"))["last"]
        )
        tried = Diagnostic.objects.filter(gpu=gpu, created_at__gt=since) if since else gpu.diagnostics.all()
        last = tried.order_by("-created_at").first()
        if last is None or (
            tried.count() < MAX_DIAGNOSTIC_TRIES
            and last.ended_at is not None
            and now - last.ended_at >= DIAGNOSTIC_RETRY_AFTER
        ):
            due.append(gpu)
    return due


def _due_after_trip(now: datetime) -> list[Gpu]:
    tripped = Gpu.objects.filter(
        host__tripped_at__isnull=False,
        host__admin_state=AdminState.CORDONED,
        repair_state=RepairState.WELL,
        host__pool__diagnose_after_quarantine=True,
    )
    due = []
    for gpu in _idle_gpus(tripped):
        since = gpu.diagnostics.filter(created_at__gte=gpu.host.tripped_at).order_by("-created_at")
        last = since.first()
        if last is None or (
            last.state == DiagnosticState.STOPPED
            and since.count() < MAX_DIAGNOSTIC_TRIES
            and last.ended_at is not None
            and now - last.ended_at >= DIAGNOSTIC_RETRY_AFTER
        ):
            due.append(gpu)
    return due


def _due_periodically(pool: Pool, now: datetime) -> list[Gpu]:
    """Return idle GPUs in service that had no result of a diagnostic within the pool's period.

    GPUs with units bound to a reservation now, GPUs on hosts that take no work, and GPUs with a diagnostic
    requested within the last hour are left out. Return only as many GPUs as PERIODIC_SHARE still allows.
    """
    period = timedelta(hours=pool.diagnose_every_hours)
    counted = Gpu.objects.filter(host__pool=pool, retired_at=None).aggregate(
        all=Count("pk", distinct=True),  # the filter below joins the diagnostics of each GPU
        now=Count("pk", filter=Q(diagnostics__state__in=OPEN_DIAGNOSTIC_STATES), distinct=True),
    )
    free_share = max(1, counted["all"] // PERIODIC_SHARE) - counted["now"]
    if free_share <= 0:
        return []
    bound = BoundUnit.objects.filter(unit__gpu=OuterRef("pk"), period__contains=now)
    answered = Diagnostic.objects.filter(
        gpu=OuterRef("pk"),
        state__in=(DiagnosticState.PASSED, DiagnosticState.FAILED),
        ended_at__gt=now - period,
    )
    tried = Diagnostic.objects.filter(
        gpu=OuterRef("pk"), created_at__gt=now - min(period, timedelta(hours=1))
    )
    idle = _idle_gpus(Gpu.objects.filter(host__pool=pool, repair_state=RepairState.WELL))
    due = [
        gpu
        for gpu in idle.filter(~Exists(bound), ~Exists(answered), ~Exists(tried))
        if accepts_work(gpu.host.lease_state, gpu.host.admin_state, gpu.host.repair_state)
    ]
    return due[:free_share]


def _notify(host_id: int) -> None:
    nudge.hosts([host_id])
    nudge.pages(nudge.HOSTS)
