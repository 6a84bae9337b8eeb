"""Build a good plan, and functions that add a bug to it, for the tests of the plan verifier.

A bug is a function that takes and returns (snapshot, plan). It changes one of them, or both, so that the plan
breaks a promise that the verifier checks. ``BUGS`` has the bugs with a description of each. Firm work is work
that may not be preempted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scheduler.core.model.plan import (
    Eviction,
    Placement,
    Plan,
    Refusal,
    ReservationBinding,
    UnboundReservation,
)
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    DecayedUseInfo,
    HostInfo,
    MaintenanceInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    Priority,
    QueuedWorkload,
    QuotaInfo,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.planner import plan
from scheduler.core.reasons import ReasonCode

NOW, HOUR, GPU = 1_000_000, 3600, SLOTS_PER_GPU


def queued(workload: int, team: int = 1, units: int = 1, **more: Any) -> QueuedWorkload:
    ask = more.pop("ask", Ask(units))
    values: dict[str, Any] = {
        "project": 1,
        "user": team,
        "pool": 1,
        "submitted": NOW - 60,
        "max_runtime_seconds": HOUR,
        "predicted_seconds": HOUR,
    }
    return QueuedWorkload(workload, team, ask=ask, **(values | more))


def running(workload: int, team: int, units: tuple[int, ...], **more: Any) -> RunningWorkload:
    values: dict[str, Any] = {
        "project": 1,
        "user": 90 + team,
        "pool": 1,
        "started": NOW - 5 * HOUR,
        "until": NOW + 20 * HOUR,
        "predicted_end": NOW + HOUR,
        "preemptible": True,
    }
    return RunningWorkload(workload, team, units=units, **(values | more))


def units_of(host: int, pool_gpus: int = 8, **more: Any) -> tuple[UnitInfo, ...]:
    values: dict[str, Any] = {"model": "H100", "memory_mib": 80_000, "compute_capability": 90}
    return tuple(
        UnitInfo(host * 100 + g, host, host * 100 + g, nvlink_group=g // 4, **(values | more))
        for g in range(pool_gpus)
    )


def sample_pool() -> Snapshot:
    """Return a shared pool with two hosts of 8 GPUs, and another pool with one host.

    Work of team 2 holds the whole second host. A reservation of two GPUs has started.
    """
    return Snapshot(
        epoch=7,
        pools=(
            PoolInfo(1, "shared", PoolKind.DYNAMIC, None, PoolPolicy()),
            PoolInfo(2, "own", PoolKind.STATIC, 3, PoolPolicy()),
        ),
        hosts=(
            HostInfo(1, "one", 1, frozenset({("site", "north")}), cpu_milli=64_000, memory_mib=512_000),
            HostInfo(2, "two", 1),
            HostInfo(3, "three", 2),
        ),
        units=(*units_of(1), *units_of(2), *units_of(3)),
        teams=(TeamInfo(1, "a"), TeamInfo(2, "b"), TeamInfo(3, "c")),
        quotas=(QuotaInfo(1, 1, "H100", 12 * GPU), QuotaInfo(2, 1, "H100", 2 * GPU, borrow_limit=8 * GPU)),
        queued=(
            queued(1, units=2, ask=Ask(2, labels=frozenset({("site", "north")}))),
            queued(2, units=8, ask=Ask(8, models=("H100",))),
            queued(3, team=2, units=4),
            queued(4, team=1, gate=ReasonCode.BUDGET_CLOSED, gate_numbers=(("spent", 5),)),
            queued(5, team=2, units=1, preemptible=True, user=8),
            queued(6, team=3, units=1, pool=2),
        ),
        running=(running(50, 2, tuple(range(200, 204))), running(51, 2, tuple(range(204, 208)))),
        reservations=(ReservationInfo(9, 1, 1, 1, Ask(2), NOW, NOW + HOUR),),
    )


def good_plan() -> Plan:
    return plan(sample_pool(), NOW)


Bug = Callable[[Snapshot, Plan], tuple[Snapshot, Plan]]


def place(workload: int, **change: Any) -> Bug:
    """Return a bug that changes the placement of a workload in the good plan."""

    def bug(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
        changed = tuple(replace(p, **change) if p.workload == workload else p for p in planned.placements)
        assert changed != planned.placements
        return snapshot, replace(planned, placements=changed)

    return bug


def extra(placement: Placement, **change: Any) -> Bug:
    """Return a bug that starts a workload that the good plan refuses.

    ``change`` also replaces fields of the workload's row in the snapshot.
    """

    def bug(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
        changed, _ = (
            row("queued", placement.workload, **change)(snapshot, planned) if change else (snapshot, planned)
        )
        refusals = tuple(r for r in planned.refusals if r.workload != placement.workload)
        placements = tuple(p for p in planned.placements if p.workload != placement.workload)
        return changed, replace(planned, placements=(*placements, placement), refusals=refusals)

    return bug


def row(table: str, key: int, **change: Any) -> Bug:
    """Return a bug that changes a row of the snapshot. The plan stays as it was made for the old row."""

    def bug(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
        rows = getattr(snapshot, table)
        changed: Any = tuple(replace(r, **change) if r.id == key else r for r in rows)
        assert changed != rows
        return replace(snapshot, **{table: changed}), planned

    return bug


def policy(**change: Any) -> Bug:
    def bug(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
        pools = tuple(replace(p, policy=replace(p.policy, **change)) for p in snapshot.pools)
        return replace(snapshot, pools=pools), planned

    return bug


def quotas(*rows: QuotaInfo) -> Bug:
    return lambda snapshot, planned: (replace(snapshot, quotas=rows), planned)


def eviction(**change: Any) -> Bug:
    def bug(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
        first, *rest = planned.evictions
        return snapshot, replace(planned, evictions=(replace(first, **change), *rest))

    return bug


def refusal(workload: int, **change: Any) -> Bug:
    def bug(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
        changed = tuple(replace(r, **change) if r.workload == workload else r for r in planned.refusals)
        assert changed != planned.refusals
        return snapshot, replace(planned, refusals=changed)

    return bug


def both(*bugs: Bug) -> Bug:
    def bug(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
        for part in bugs:
            snapshot, planned = part(snapshot, planned)
        return snapshot, planned

    return bug


def started(workload: int, *units: int, borrowed: int = 0, until: int = NOW + HOUR) -> Placement:
    return Placement(workload, tuple(units), borrowed, ReasonCode.FREE_WITHIN_GUARANTEE, (("x", 1),), until)


def without_answer(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    return snapshot, replace(planned, refusals=planned.refusals[1:])


def bound_elsewhere(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    return snapshot, replace(planned, bindings=(ReservationBinding(9, (200, 201)),))


def bound_short(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    return snapshot, replace(planned, bindings=(ReservationBinding(9, planned.bindings[0].units[:1]),))


def bound_twice(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    other = ReservationInfo(10, 1, 1, 1, Ask(2), NOW, NOW + HOUR)
    again = (*planned.bindings, ReservationBinding(10, planned.bindings[0].units))
    return replace(snapshot, reservations=(*snapshot.reservations, other)), replace(planned, bindings=again)


def bound_early(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    later = tuple(replace(r, start=NOW + 60) for r in snapshot.reservations)
    return replace(snapshot, reservations=later), planned


def maintenance(start: int, end: int) -> Bug:
    return lambda snapshot, planned: (
        replace(snapshot, maintenance=(MaintenanceInfo(1, start, end),)),
        planned,
    )


def reserved_later(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    """Add a reservation that starts in ten minutes and needs five GPUs of the first host.

    At the start, work of the plan and another reservation use at least four of the eight GPUs.
    """
    promise = ReservationInfo(
        11, 1, 1, 1, Ask(5, labels=frozenset({("site", "north")})), NOW + 600, NOW + HOUR
    )
    return replace(snapshot, reservations=(*snapshot.reservations, promise)), planned


def reserved_tomorrow(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    """Reserve both hosts for tomorrow, and start firm work that lasts 48 hours on one of them.

    The other host has a full disk and takes no new work today.
    """
    full = replace(snapshot.hosts[1], schedulable=False, closed_code=ReasonCode.HOST_FULL)
    tomorrow = ReservationInfo(11, 1, 1, 1, Ask(8, hosts=2), NOW + 24 * HOUR, NOW + 30 * HOUR)
    stays = queued(1, units=2, max_runtime_seconds=48 * HOUR)
    alone = replace(
        snapshot,
        hosts=(snapshot.hosts[0], full),
        queued=(stays,),
        running=(),
        reservations=(tomorrow,),
        units=(*units_of(1), *units_of(2)),
        pools=snapshot.pools[:1],
    )
    return alone, Plan(7, placements=(started(1, 100, 101, until=NOW + 48 * HOUR),))


def spare_used(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    return policy(spare_slots=6 * GPU)(snapshot, planned)


def evict_for_priority(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    """Evict running work of team 2 for waiting work of team 2 with the same priority."""
    note = Eviction(51, 3, None, ReasonCode.EVICTED_FOR_PRIORITY, NOW + 30, (("x", 1),))
    changed, waits = refusal(3, code=ReasonCode.WAITS_FOR_EVICTION, blockers=(51,))(snapshot, planned)
    rows = tuple(replace(r, priority=Priority.NORMAL) for r in changed.running)
    return replace(changed, running=rows), replace(waits, evictions=(note,))


def delayed_hold(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    """Start low-priority work on a GPU that the plan holds for normal work of the same team.

    The low-priority work ends too late: the normal work is expected to start in a minute.
    """
    changed = replace(snapshot, queued=(*snapshot.queued, queued(7, priority=Priority.LOW)))
    held = refusal(2, held_units=(104,), expected_start=NOW + 60)(changed, planned)[1]
    return changed, replace(held, placements=(*held.placements, started(7, 104)))


def not_bound(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    """Bind no units to a started reservation and report missing units, although enough units are free."""
    waits = UnboundReservation(9, ReasonCode.RESERVED_UNITS_MISSING, (("need", 2),))
    return snapshot, replace(planned, bindings=(), unbound=(waits,))


def two_models() -> Snapshot:
    """Return a host of H100 guaranteed to team 1, and a host of A100 guaranteed to team 2."""
    guaranteed = (
        QuotaInfo(1, 1, "H100", 8 * GPU),
        QuotaInfo(1, 1, "A100", 0),
        QuotaInfo(2, 1, "H100", 0),
        QuotaInfo(2, 1, "A100", 8 * GPU),
    )
    alone = replace(sample_pool(), queued=(), running=(), reservations=(), quotas=guaranteed)
    return replace(
        alone, units=(*units_of(1), *units_of(2, model="A100")), pools=alone.pools[:1], hosts=alone.hosts[:2]
    )


def bound_to_guaranteed_units_of_others(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    either = ReservationInfo(9, 2, 1, 1, Ask(8, models=("H100", "A100")), NOW, NOW + HOUR)
    return replace(two_models(), reservations=(either,)), Plan(
        7, bindings=(ReservationBinding(9, ALL_OF_ONE),)
    )


def above_the_guarantee_when_the_reservation_starts(
    snapshot: Snapshot, planned: Plan
) -> tuple[Snapshot, Plan]:
    """Start firm work of team 1 on 8 GPUs for five hours.

    Team 1 is guaranteed 8 GPUs and has reserved 8 GPUs in an hour, so it would then hold 16.
    """
    guaranteed = (QuotaInfo(1, 1, "H100", 8 * GPU), QuotaInfo(2, 1, "H100", 8 * GPU))
    soon = (ReservationInfo(9, 1, 1, 1, Ask(8), NOW + HOUR, NOW + 2 * HOUR),)
    stays = queued(1, units=8, max_runtime_seconds=5 * HOUR)
    alone = replace(
        two_models(),
        quotas=guaranteed,
        reservations=soon,
        queued=(stays,),
        units=(*units_of(1), *units_of(2)),
    )
    return alone, Plan(7, placements=(started(1, *ALL_OF_ONE, until=NOW + 5 * HOUR),))


def no_eviction_for_a_reservation(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    """Evict no work although a reservation of the whole pool starts in half a minute."""
    soon = ReservationInfo(9, 1, 1, 1, Ask(8, hosts=2), NOW + 30, NOW + HOUR)
    alone = replace(snapshot, reservations=(soon,), queued=())
    return alone, Plan(7)


def needless_eviction_for_a_reservation(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    """Evict work for a reservation of two units, although two units are free."""
    note = Eviction(50, None, 9, ReasonCode.EVICTED_FOR_RESERVATION, NOW + 30, (("reservation", 9),))
    waits = UnboundReservation(9, ReasonCode.RESERVED_UNITS_IN_USE, (("need", 2),))
    return snapshot, replace(planned, evictions=(note,), bindings=(), unbound=(waits,))


def guaranteed_work_evicted_for_a_reservation(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
    """Evict guaranteed work for a reservation although borrowed work holds enough units."""
    soon = ReservationInfo(9, 1, 1, 1, Ask(4), NOW + 30, NOW + HOUR)
    guaranteed, borrowed = running(50, 1, tuple(range(100, 104))), running(51, 2, tuple(range(104, 108)))
    alone = replace(
        snapshot,
        hosts=snapshot.hosts[:1],
        units=units_of(1),
        quotas=(QuotaInfo(1, 1, "H100", 8 * GPU), QuotaInfo(2, 1, "H100", 0)),
        queued=(),
        running=(guaranteed, borrowed),
        reservations=(soon,),
    )
    note = Eviction(50, None, 9, ReasonCode.EVICTED_FOR_RESERVATION, NOW + 30, (("reservation", 9),))
    return alone, Plan(7, evictions=(note,))


def small_plan(*rows: QueuedWorkload, placed: Placement, waits: int, **more: Any) -> Bug:
    """Return a bug that replaces snapshot and plan by a small example on one host of 8 GPUs.

    The plan places ``placed``. If ``waits`` is not 0, the plan refuses the workload with this id. ``more``
    has tables that replace tables of the snapshot.
    """

    def bug(snapshot: Snapshot, planned: Plan) -> tuple[Snapshot, Plan]:
        small = Snapshot(
            7,
            snapshot.pools,
            snapshot.hosts,
            units_of(1),
            snapshot.teams,
            (QuotaInfo(1, 1, "H100", 8 * GPU), QuotaInfo(2, 1, "H100", 0)),
            queued=rows,
        )
        refusals = (Refusal(waits, ReasonCode.WAITS_FOR_UNITS, (("need", 8),), 1),) if waits else ()
        return replace(small, **more), Plan(7, placements=(placed,), refusals=refusals)

    return bug


ALL_OF_ONE = tuple(range(100, 108))
TWO_SLICED = tuple(
    UnitInfo(1000 + 10 * gpu + part, 1, 100 + gpu, "H100", "1g.10gb", 120, 10_000, 90)
    for gpu in (0, 1)
    for part in range(7)
)


BUGS: dict[str, tuple[Bug, str]] = {
    "a plan of another epoch": (lambda s, p: (s, replace(p, epoch=6)), "epoch"),
    "a workload without an answer": (without_answer, "0 answers"),
    "a workload with two answers": (
        lambda s, p: (
            s,
            replace(p, refusals=(*p.refusals, Refusal(1, ReasonCode.WAITS_FOR_UNITS, (("x", 1),)))),
        ),
        "2 answers",
    ),
    "an answer for an unknown workload": (
        lambda s, p: (
            s,
            replace(p, refusals=(*p.refusals, Refusal(99, ReasonCode.WAITS_FOR_UNITS, (("x", 1),)))),
        ),
        "does not wait",
    ),
    "a unit that does not exist": (place(1, units=(100, 999)), "does not exist"),
    "a unit allocated twice": (extra(started(3, 102, 103, 104, 105)), "given to 2"),
    "a unit that is held": (place(1, units=(200, 201)), "still held"),
    "a unit kept for another": (
        row("queued", 2, earmarked_units=tuple(range(100, 108))),
        "kept for workload 2",
    ),
    "a placement of a part of a gang": (place(1, units=(102,)), "asked for 1 x 2"),
    "the wrong profile": (row("queued", 1, ask=Ask(2, profile="1g.10gb")), "did not ask for"),
    "the wrong model": (row("queued", 1, ask=Ask(2, models=("A100",))), "did not ask for"),
    "too little memory": (row("queued", 1, ask=Ask(2, min_memory_mib=90_000)), "did not ask for"),
    "too old a GPU": (row("queued", 1, ask=Ask(2, min_compute_capability=100)), "did not ask for"),
    "two kinds in one gang": (
        both(row("units", 102, model="A100"), row("units", 102, model="A100", memory_mib=1)),
        "different kinds",
    ),
    "a missing label": (row("hosts", 1, labels=frozenset()), "lacks a label"),
    "a closed host": (row("hosts", 1, schedulable=False), "takes no work"),
    "a host under maintenance": (maintenance(NOW - 60, NOW + 60), "takes no work"),
    "a run into maintenance": (maintenance(NOW + 60, NOW + 120), "maintenance of host"),
    "an unhealthy unit": (row("units", 102, healthy=False), "an unhealthy unit"),
    "no NVLink": (
        both(row("queued", 1, ask=Ask(2, nvlink=True)), row("units", 102, nvlink_group=5)),
        "NVLink",
    ),
    "another pool": (row("queued", 6, pool=1), "waits in pool"),
    "too little CPU": (row("queued", 1, ask=Ask(2, cpu_milli=65_000)), "no CPU left"),
    "too little host memory": (row("queued", 1, ask=Ask(2, memory_mib=600_000)), "no memory left"),
    "a closed gate": (row("queued", 1, gate=ReasonCode.DEPENDENCY), "behind the gate"),
    "a back-off not over": (row("queued", 1, not_before=NOW + 5), "back-off"),
    "too long a run": (policy(longest_runtime_seconds=60), "longer than the pool allows"),
    "another team in a static pool": (row("queued", 6, team=1), "another team's static pool"),
    "other work on reserved units": (place(1, units=(100, 101)), "is outside reservation"),
    "a reservation that does not exist": (row("queued", 1, reservation=77), "outside its window"),
    "a reservation of another project": (
        row("queued", 1, reservation=9, project=2),
        "of another team or project",
    ),
    "outside its reservation": (row("queued", 1, reservation=9), "not bound to its reservation"),
    "a placement with a wrong end": (place(1, until=NOW + 99), "has to end"),
    "a share of two teams": (
        lambda s, p: (replace(s, units=tuple(replace(u, profile="share-1/4", gpu=1) for u in s.units)), p),
        "time-sliced between teams",
    ),
    "no quota": (quotas(QuotaInfo(2, 1, "H100", 2 * GPU, 8 * GPU)), "has no quota"),
    "above the borrow limit": (
        quotas(QuotaInfo(1, 1, "H100", 0, GPU), QuotaInfo(2, 1, "H100", 0)),
        "above guarantee",
    ),
    "borrowing for firm work": (
        quotas(QuotaInfo(1, 1, "H100", GPU), QuotaInfo(2, 1, "H100", 0)),
        "is not preemptible",
    ),
    "borrowing against the rule": (
        both(
            quotas(QuotaInfo(1, 1, "H100", GPU), QuotaInfo(2, 1, "H100", 0)),
            row("queued", 1, preemptible=True, may_borrow=False),
        ),
        "may not borrow",
    ),
    "borrowing that the plan does not report": (
        both(
            quotas(QuotaInfo(1, 1, "H100", GPU), QuotaInfo(2, 1, "H100", 0)),
            row("queued", 1, preemptible=True, may_borrow=True),
        ),
        "the plan marks 0",
    ),
    "too many borrowed": (place(1, borrowed_slots=9 * GPU), "borrows"),
    "firm work marked as borrowed": (place(1, borrowed_slots=GPU), "marked as borrowed"),
    "above the workload cap": (policy(max_slots_per_workload=GPU), "the cap is"),
    "above the user cap": (policy(max_slots_per_user=GPU), "user 1 holds"),
    "spare capacity used": (spare_used, "its spare is"),
    "a start that breaks a reservation": (reserved_later, "could be kept before"),
    "a start that breaks a reservation on a host with a full disk": (
        reserved_tomorrow,
        "could be kept before",
    ),
    "held units used by other work": (delayed_hold, "delays workload 2"),
    "a binding on held units": (bound_elsewhere, "still holds"),
    "a short binding": (bound_short, "units per host"),
    "units bound twice": (bound_twice, "bound to two"),
    "a binding before its time": (bound_early, "outside its window"),
    "a binding of the wrong units": (
        row("reservations", 9, ask=Ask(2, models=("A100",))),
        "bound to units it did not ask for",
    ),
    "a reservation that waits without a reason": (
        lambda s, p: (s, replace(p, bindings=())),
        "has begun without units",
    ),
    "a reason for a reservation that does not wait": (
        lambda s, p: (
            s,
            replace(p, unbound=(UnboundReservation(9, ReasonCode.RESERVED_UNITS_MISSING, (("need", 2),)),)),
        ),
        "does not wait for units",
    ),
    "a reservation that waits with a reason of workloads": (
        lambda s, p: (
            s,
            replace(
                p, bindings=(), unbound=(UnboundReservation(9, ReasonCode.WAITS_FOR_UNITS, (("need", 2),)),)
            ),
        ),
        "waits with code",
    ),
    "an eviction of work that does not run": (eviction(workload=1234), "does not run"),
    "an eviction without notice": (eviction(stop_at=NOW), "whole notice"),
    "an eviction of work that is not preemptible": (row("running", 50, preemptible=False), "not preemptible"),
    "an eviction too early": (row("running", 50, started=NOW - 10), "minimum runtime"),
    "an eviction twice": (
        lambda s, p: (s, replace(p, evictions=(*p.evictions, *p.evictions))),
        "planned twice",
    ),
    "an eviction of stopping work": (row("running", 50, stopping=True), "is stopping already"),
    "an eviction without a beneficiary": (eviction(for_workload=None), "exactly one beneficiary"),
    "an eviction for two beneficiaries": (eviction(for_reservation=9), "exactly one beneficiary"),
    "an eviction with a wrong code": (eviction(code=ReasonCode.WAITS_FOR_UNITS), "with code"),
    "an eviction for a workload that does not wait": (
        eviction(for_workload=4321),
        "does not wait in its pool",
    ),
    "an eviction for a workload that does not wait for it": (
        refusal(2, code=ReasonCode.WAITS_FOR_UNITS),
        "does not wait for it",
    ),
    "an eviction of the workload that evicted it": (row("queued", 2, evicted_by=50), "and now evicts it"),
    "an eviction that frees nothing of use": (
        row("queued", 2, ask=Ask(8, models=("B200",))),
        "frees no units",
    ),
    "an eviction of equal priority": (evict_for_priority, "priority is not lower"),
    "an eviction from a reservation": (row("running", 50, reservation=9), "inside a reservation of another"),
    "an eviction by a borrower": (
        quotas(QuotaInfo(1, 1, "H100", 4 * GPU), QuotaInfo(2, 1, "H100", 2 * GPU)),
        "not within its team's guarantee",
    ),
    "an eviction of guaranteed work": (
        quotas(QuotaInfo(1, 1, "H100", 12 * GPU), QuotaInfo(2, 1, "H100", 8 * GPU)),
        "borrowed only",
    ),
    "an eviction that is too early for its reservation": (
        both(row("reservations", 9, start=NOW + HOUR), eviction(for_workload=None, for_reservation=9)),
        "does not start yet",
    ),
    "an eviction that is not needed": (
        row("queued", 2, ask=Ask(4, models=("H100",))),
        "is not needed",
    ),
    "an eviction while free units would do": (
        row("queued", 2, ask=Ask(3, models=("H100",))),
        "which fits without evictions",
    ),
    "an eviction in vain": (
        both(row("queued", 2, ask=Ask(8, hosts=2)), policy(notice_seconds=0)),
        "are evicted in vain",
    ),
    "an eviction for a guarantee, with the reason code for priority": (
        eviction(code=ReasonCode.EVICTED_FOR_PRIORITY),
        "instead of evicted_for_guarantee",
    ),
    "an eviction of a workload that the beneficiary does not name": (
        refusal(2, blockers=(51,)),
        "which has other blockers",
    ),
    "a reservation that waits while its units are free": (not_bound, "although enough units are free"),
    "a binding to the model that others are guaranteed": (
        bound_to_guaranteed_units_of_others,
        "its own team is guaranteed A100",
    ),
    "firm work that exceeds the guarantee with its own team's reservation": (
        above_the_guarantee_when_the_reservation_starts,
        "together more than team 1 is",
    ),
    "borrowers not evicted for a reservation": (
        no_eviction_for_a_reservation,
        "no work on its units is evicted in time",
    ),
    "guaranteed work evicted for a reservation": (
        guaranteed_work_evicted_for_a_reservation,
        "borrowed work suffices",
    ),
    "an eviction for a reservation that has enough units": (
        needless_eviction_for_a_reservation,
        "has enough units without it",
    ),
    "a binding to a closed host": (row("hosts", 1, schedulable=False), "which is not in service"),
    "a binding without NVLink": (
        both(row("reservations", 9, ask=Ask(2, nvlink=True)), row("units", 101, nvlink_group=5)),
        "without NVLink",
    ),
    "a binding of units kept for a workload": (
        row("queued", 2, earmarked_units=(100,)),
        "not for a reservation",
    ),
    "low priority served before high": (
        small_plan(
            queued(1, units=8, priority=Priority.HIGH),
            queued(2, units=8, priority=Priority.LOW),
            placed=started(2, *ALL_OF_ONE),
            waits=1,
        ),
        "which has the higher priority",
    ),
    "a borrower served before guaranteed work": (
        small_plan(
            queued(1, units=8),
            queued(2, team=2, units=8, preemptible=True),
            placed=replace(started(2, *ALL_OF_ONE, borrowed=8 * GPU), code=ReasonCode.FREE_BORROWED),
            waits=1,
        ),
        "within its team's guarantee",
    ),
    "a borrower with more use served before one with less": (
        small_plan(
            queued(1, units=8, preemptible=True),
            queued(2, team=2, units=8, preemptible=True),
            placed=replace(started(2, *ALL_OF_ONE, borrowed=8 * GPU), code=ReasonCode.FREE_BORROWED),
            waits=1,
            quotas=(QuotaInfo(1, 1, "H100", 0), QuotaInfo(2, 1, "H100", 0)),
            decayed_use=(DecayedUseInfo(1, 1, 10.0), DecayedUseInfo(2, 1, 9_000_000_000.0)),
        ),
        "whose team used less",
    ),
    "the second model while the first is free": (
        small_plan(
            queued(1, ask=Ask(1, models=("H100", "A100"))),
            placed=started(1, 200),
            waits=0,
            units=(*units_of(1), *units_of(2, model="A100")),
            quotas=(QuotaInfo(1, 1, "H100", 8 * GPU), QuotaInfo(1, 1, "A100", 8 * GPU)),
        ),
        "which it prefers, is free",
    ),
    "a start on a host that failed to start it": (
        small_plan(
            queued(1, avoids=(1,), avoids_until=NOW + HOUR),
            placed=started(1, 100),
            waits=0,
            units=(*units_of(1), *units_of(2)),
        ),
        "could not start, while it fits elsewhere",
    ),
    "a start away from its checkpoint": (
        small_plan(
            queued(1, checkpoint_storage=7),
            placed=started(1, 100),
            waits=0,
            units=(*units_of(1), *units_of(2)),
            hosts=(HostInfo(1, "h1", 1, home_storage=8), HostInfo(2, "h2", 1, home_storage=7)),
        ),
        "away from its checkpoint's storage",
    ),
    "a full disk that does not exist": (
        both(
            row("hosts", 1, schedulable=False, closed_code=ReasonCode.HOST_FULL),
            refusal(2, code=ReasonCode.HOST_FULL, numbers=(("full", 1), ("hosts", ["another"]), ("need", 4))),
        ),
        "has reason host_full, which is not true",
    ),
    "a slice of an unused GPU while slices of a used GPU are free": (
        small_plan(
            queued(1, ask=Ask(1, profile="1g.10gb")),
            placed=started(1, 1010),
            waits=0,
            units=TWO_SLICED,
            running=(running(50, 1, (1000,)),),
        ),
        "untouched GPU",
    ),
    "a start without numbers": (place(1, numbers=()), "starts without numbers"),
    "a borrowed start reported as guaranteed": (
        place(5, code=ReasonCode.FREE_WITHIN_GUARANTEE),
        "instead of free_borrowed",
    ),
    "a start in a deleted pool": (row("queued", 1, pool=77), "a pool that is not known"),
    "numbers that JSON does not allow": (refusal(3, numbers=(("need", float("nan")),)), "not valid in JSON"),
    "rows out of order": (
        lambda s, p: (s, replace(p, placements=tuple(reversed(p.placements)))),
        "placements are not sorted",
    ),
    "a wait for an eviction without an expected start": (
        refusal(2, expected_start=None),
        "without an expected start",
    ),
    "an expected start of work that can never start": (
        refusal(3, code=ReasonCode.NO_QUOTA, expected_start=NOW + 60),
        "no known event ends its wait",
    ),
    "a queue position of a gated workload": (refusal(4, position=3), "has position 3"),
    "a wait for a workload that does not run": (refusal(3, blockers=(1234,)), "does not run in its pool"),
    "held units that do not serve the workload": (
        refusal(3, held_units=(300,), expected_start=NOW + 60),
        "does not serve",
    ),
    "a start on held units of work that ends too late": (
        refusal(3, held_units=(102,), expected_start=NOW + 60),
        "delays workload 3",
    ),
    "running work that is expected to use held units for too long": (
        both(
            refusal(3, held_units=(200,), expected_start=NOW + 60), lambda s, p: (s, replace(p, evictions=()))
        ),
        "is expected on units held",
    ),
    "a refusal with a code for starts": (refusal(3, code=ReasonCode.FREE_BORROWED), "with code"),
    "a start with a code for refusals": (place(1, code=ReasonCode.WAITS_FOR_UNITS), "starts with code"),
    "a refusal without numbers": (refusal(3, numbers=()), "without numbers"),
    "a start expected in the past": (refusal(3, expected_start=NOW - 1), "in the past"),
    "a hidden gate": (refusal(4, code=ReasonCode.WAITS_FOR_UNITS, numbers=(("x", 1),)), "hides its gate"),
    "a queue position used twice": (refusal(2, position=2), "positions in pool"),
    "a wait for an eviction without victims": (refusal(2, blockers=()), "but has no blockers"),
    "a wait although units are free": (
        lambda s, p: (
            Snapshot(7, s.pools, s.hosts, s.units, s.teams, s.quotas, queued=(queued(1, units=2),)),
            Plan(7, refusals=(Refusal(1, ReasonCode.WAITS_FOR_UNITS, (("x", 1),), 1),)),
        ),
        "units that are free",
    ),
}
