"""Check placements: which work the plan starts, and on which units."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from benchmarks.plan_verifier.plan_lookups import PlanLookups
from benchmarks.plan_verifier.unit_lookups import kind_tuple, serves
from scheduler.core.model.plan import Placement
from scheduler.core.model.snapshot import QueuedWorkload
from scheduler.core.reasons import ReasonCode

START_CODES = {
    ReasonCode.FREE_WITHIN_GUARANTEE,
    ReasonCode.FREE_BORROWED,
    ReasonCode.INSIDE_RESERVATION,
    ReasonCode.RECLAIMED_GUARANTEE,
    ReasonCode.OUTRANKED_WITHIN_TEAM,
    ReasonCode.OWN_STATIC_POOL,
}


def known_placements(lookups: PlanLookups) -> Iterator[tuple[Placement, QueuedWorkload, str]]:
    """Yield (placement, its workload, name of the workload) for each placement of known rows.

    A placement has known rows if its workload, its pool and its units exist. The name is used in the
    sentences that report violations.
    """
    for placement in lookups.placements:
        yield placement, lookups.queued[placement.workload], f"workload {placement.workload}"


def a_unit_is_held_once(lookups: PlanLookups) -> Iterator[str]:
    """Report placements on units that do not exist, are assigned twice, or are still held by other work."""
    taken = Counter(unit for p in lookups.plan.placements for unit in p.units)
    for unit, times in sorted(taken.items()):
        if unit not in lookups.units:
            yield f"unit {unit} does not exist"
        elif times > 1:
            yield f"unit {unit} is given to {times} workloads"
        elif unit in lookups.holder:
            yield f"unit {unit} is still held by workload {lookups.holder[unit]}"


def freed_units_are_earmarked(lookups: PlanLookups) -> Iterator[str]:
    """Report units that evictions freed for one workload, and that the plan gives to another workload or to a
    reservation.

    Freed units are kept for the workload for which they were freed, until it starts or gives them up.
    """
    for placement in lookups.plan.placements:
        for unit in placement.units:
            owner = lookups.earmark.get(unit)
            if owner is not None and owner != placement.workload:
                yield f"unit {unit} is kept for workload {owner}, not for {placement.workload}"
    for binding in lookups.plan.bindings:
        for unit in binding.units:
            if unit in lookups.earmark:
                yield f"unit {unit} is kept for workload {lookups.earmark[unit]}, not for a reservation"


def gangs_start_whole(lookups: PlanLookups) -> Iterator[str]:
    """Report workloads that do not get exactly the requested number of hosts and of units per host.

    Also report workloads that get units of different kinds.
    """
    for placement, queued, subject in known_placements(lookups):
        units = [lookups.units[u] for u in placement.units]
        per_host = Counter(u.host for u in units)
        if len(per_host) != queued.ask.hosts or set(per_host.values()) != {queued.ask.units}:
            yield (
                f"{subject} asked for {queued.ask.hosts} x {queued.ask.units} units and got "
                f"{sorted(per_host.values())}"
            )
        if len({kind_tuple(u) for u in units}) > 1:
            yield f"{subject} got units of different kinds"


def asks_get_matching_units(lookups: PlanLookups) -> Iterator[str]:
    """Report placements on units or hosts that do not match the request.

    The units must match the requested model, profile, memory and compute capability. The hosts must have the
    requested labels and be in the workload's pool.
    """
    for placement, queued, subject in known_placements(lookups):
        for unit in (lookups.units[u] for u in placement.units):
            if not serves(unit, queued.ask):
                yield (
                    f"{subject} got unit {unit.id} ({unit.model} {unit.profile!r}), which it did not ask for"
                )
        for host in sorted({lookups.units[u].host for u in placement.units}):
            if lookups.hosts[host].pool != queued.pool:
                yield (
                    f"{subject} got units of pool {lookups.hosts[host].pool}, it waits in pool {queued.pool}"
                )
            if not queued.ask.labels <= lookups.hosts[host].labels:
                yield f"{subject} is on host {host}, which lacks a label"


def nvlink_is_one_island(lookups: PlanLookups) -> Iterator[str]:
    """Report requests for NVLink whose units on one host are not in one NVLink group."""
    for placement, queued, subject in known_placements(lookups):
        units = [lookups.units[u] for u in placement.units]
        for host in sorted({u.host for u in units}) if queued.ask.nvlink else ():
            groups = {u.nvlink_group for u in units if u.host == host}
            if len(groups) > 1 or None in groups:
                yield f"{subject} asked for NVLink and got groups {sorted(map(str, groups))} on host {host}"


def only_healthy_gpus_on_open_hosts(lookups: PlanLookups) -> Iterator[str]:
    """Report work that starts on a closed host, on a host under maintenance, or on an unhealthy GPU."""
    for placement, _, subject in known_placements(lookups):
        units = [lookups.units[u] for u in placement.units]
        for host in sorted({u.host for u in units}):
            if not lookups.hosts[host].schedulable or lookups.under_maintenance(
                host, lookups.now, lookups.now + 1
            ):
                yield f"{subject} is on host {host}, which takes no work"
        if any(not u.healthy for u in units):
            yield f"{subject} got an unhealthy unit"


def cpu_and_memory_suffice(lookups: PlanLookups) -> Iterator[str]:
    """Report placements on hosts with too little CPU or memory. Hosts of unknown size are not checked."""
    for placement, queued, subject in known_placements(lookups):
        for host in sorted({lookups.units[u].host for u in placement.units}):
            row = lookups.hosts[host]
            if queued.ask.cpu_milli and 0 < row.cpu_milli < lookups.cpu_used(host):
                yield f"host {host} has no CPU left for {subject}"
            if queued.ask.memory_mib and 0 < row.memory_mib < lookups.memory_used(host):
                yield f"host {host} has no memory left for {subject}"


def gates_hold(lookups: PlanLookups) -> Iterator[str]:
    """Report work that the plan may not start.

    A gate is a condition that prevents a start, for example a closed budget. Work may not start behind a
    gate, during the wait after a failed attempt, with a runtime limit above the pool's limit, or in an
    unknown pool.
    """
    for placement in lookups.plan.placements:
        if (
            placement.workload in lookups.queued
            and lookups.queued[placement.workload].pool not in lookups.pools
        ):
            yield f"workload {placement.workload} started in a pool that is not known"
    for _, queued, subject in known_placements(lookups):
        if queued.gate:
            yield f"{subject} started behind the gate {queued.gate}"
        if queued.not_before > lookups.now:
            yield f"{subject} started before its back-off was over"
        if queued.max_runtime_seconds > lookups.pools[queued.pool].policy.longest_runtime_seconds:
            yield f"{subject} may run longer than the pool allows"


def static_pools_are_their_owners(lookups: PlanLookups) -> Iterator[str]:
    """Report work that starts in a static pool of another team."""
    for _, queued, subject in known_placements(lookups):
        if lookups.is_static(queued.pool) and lookups.pools[queued.pool].team != queued.team:
            yield f"{subject} started in another team's static pool"


def work_ends_in_time(lookups: PlanLookups) -> Iterator[str]:
    """Report placements with a wrong deadline.

    The deadline is the workload's runtime limit, or the end of its reservation if that is earlier. Also
    report work outside reservations that may run into maintenance of its hosts.
    """
    for placement, queued, subject in known_placements(lookups):
        until = lookups.now + queued.max_runtime_seconds
        reservation = lookups.reservations.get(queued.reservation or 0)
        if reservation is not None:
            until = min(until, reservation.end)
        if placement.until != until:
            yield f"{subject} has to end at {placement.until}, expected {until}"
        for host in sorted({lookups.units[u].host for u in placement.units}):
            if queued.reservation is None and lookups.under_maintenance(host, lookups.now, until):
                yield f"{subject} may run into the maintenance of host {host}"


def shares_serve_one_team(lookups: PlanLookups) -> Iterator[str]:
    """Report GPUs whose time-sliced shares are held by two teams at the same time."""
    teams: dict[int, set[int]] = defaultdict(set)
    holders = [(r.team, r.units) for r in lookups.snapshot.running]
    holders += [(queued.team, placement.units) for placement, queued, _ in known_placements(lookups)]
    for team, units in holders:
        for unit in units:
            if unit in lookups.units and lookups.units[unit].profile.startswith("share"):
                teams[lookups.units[unit].gpu].add(team)
    for gpu in sorted({lookups.units[u].gpu for p in lookups.placements for u in p.units}):
        if len(teams[gpu]) > 1:
            yield f"GPU {gpu} is time-sliced between teams {sorted(teams[gpu])}"


def slices_fill_used_gpus(lookups: PlanLookups) -> Iterator[str]:
    """Report slices placed on an unused GPU while a GPU in use on the same host has a free slice."""
    in_use = {lookups.units[u].gpu for u in lookups.holder if u in lookups.units}
    free = {
        (u.host, kind_tuple(u))
        for units in lookups.free_after_plan.values()
        for u in units
        if u.gpu in in_use
    }
    for placement, queued, subject in known_placements(lookups):
        if not _takes_any_free_slice(lookups, queued):
            continue
        for unit in (lookups.units[u] for u in placement.units):
            if unit.gpu not in in_use and (unit.host, kind_tuple(unit)) in free:
                yield f"{subject} takes a slice of the untouched GPU {unit.gpu}, while a used GPU has one"


def _takes_any_free_slice(lookups: PlanLookups, queued: QueuedWorkload) -> bool:
    """Return True if the workload requests MIG slices and may use every free slice of its pool.

    If some free slices may be kept for other work or for a reservation, the result is False.
    """
    profile, pool = queued.ask.profile, queued.pool
    if not profile or profile.startswith("share") or queued.ask.nvlink or queued.reservation is not None:
        return False
    may_be_earmarked = (
        queued.id in lookups.awaiting_evictions
        or pool in lookups.pools_with_earmarks_given_up
        or pool in lookups.pools_with_room_being_made
        or bool(lookups.held_units)
        or bool(lookups.unbound(pool))
    )
    return not may_be_earmarked


def placements_have_a_true_reason(lookups: PlanLookups) -> Iterator[str]:
    """Report placements whose reason code is wrong for the way in which the work starts.

    Work starts in one of five ways: in a reservation, in a static pool, on units that evictions freed, on
    borrowed units, or within the guarantee. Also report placements whose ``numbers`` are empty.
    """
    for placement, queued, subject in known_placements(lookups):
        if placement.code not in START_CODES:
            yield f"{subject} starts with code {placement.code!r}"
            continue
        if not placement.numbers:
            yield f"{subject} starts without numbers"
        expected = (
            {ReasonCode.FREE_BORROWED} if placement.borrowed_slots else {ReasonCode.FREE_WITHIN_GUARANTEE}
        )
        if queued.reservation is not None:
            expected = {ReasonCode.INSIDE_RESERVATION}
        elif lookups.is_static(queued.pool):
            expected = {ReasonCode.OWN_STATIC_POOL}
        elif queued.id in lookups.awaiting_evictions:
            expected = {
                None: {ReasonCode.RECLAIMED_GUARANTEE, ReasonCode.OUTRANKED_WITHIN_TEAM},
                True: {ReasonCode.OUTRANKED_WITHIN_TEAM},
                False: {ReasonCode.RECLAIMED_GUARANTEE},
            }[queued.room_made_by_own_team]
        if placement.code not in expected:
            yield f"{subject} starts with code {placement.code} instead of {' or '.join(sorted(expected))}"
