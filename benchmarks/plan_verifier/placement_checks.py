"""What starts: on which units, and may it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from benchmarks.plan_verifier.plan_lookups import PlanLookups, kind_tuple, serves
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


def known_placements(facts: PlanLookups) -> Iterator[tuple[Placement, QueuedWorkload, str]]:
    """Every placement of a known workload, with its row and its name in a sentence."""
    for placement in facts.placements:
        yield placement, facts.queued[placement.workload], f"workload {placement.workload}"


def a_unit_is_held_once(facts: PlanLookups) -> Iterator[str]:
    """By one workload at any instant: not given twice, and not while somebody is on it."""
    taken = Counter(unit for p in facts.plan.placements for unit in p.units)
    for unit, times in sorted(taken.items()):
        if unit not in facts.units:
            yield f"unit {unit} does not exist"
        elif times > 1:
            yield f"unit {unit} is given to {times} workloads"
        elif unit in facts.holder:
            yield f"unit {unit} is still held by workload {facts.holder[unit]}"


def freed_units_are_earmarked(facts: PlanLookups) -> Iterator[str]:
    """Units that others left for a workload go to nobody else, a reservation included, until it starts or gives them up."""
    for placement in facts.plan.placements:
        for unit in placement.units:
            owner = facts.earmark.get(unit)
            if owner is not None and owner != placement.workload:
                yield f"unit {unit} is kept for workload {owner}, not for {placement.workload}"
    for binding in facts.plan.bindings:
        for unit in binding.units:
            if unit in facts.earmark:
                yield f"unit {unit} is kept for workload {facts.earmark[unit]}, not for a reservation"


def gangs_start_whole(facts: PlanLookups) -> Iterator[str]:
    """On all the hosts asked for, with as many units on each, all of one kind."""
    for placement, queued, who in known_placements(facts):
        units = [facts.units[u] for u in placement.units]
        per_host = Counter(u.host for u in units)
        if len(per_host) != queued.ask.hosts or set(per_host.values()) != {queued.ask.units}:
            yield f"{who} asked for {queued.ask.hosts} x {queued.ask.units} units and got {sorted(per_host.values())}"
        if len({kind_tuple(u) for u in units}) > 1:
            yield f"{who} got units of different kinds"


def asks_get_matching_units(facts: PlanLookups) -> Iterator[str]:
    """Model, profile, memory, compute capability, labels, the pool it waits in."""
    for placement, queued, who in known_placements(facts):
        for unit in (facts.units[u] for u in placement.units):
            if not serves(unit, queued.ask):
                yield f"{who} got unit {unit.id} ({unit.model} {unit.profile!r}), which it did not ask for"
        for host in sorted({facts.units[u].host for u in placement.units}):
            if facts.hosts[host].pool != queued.pool:
                yield f"{who} got units of pool {facts.hosts[host].pool}, it waits in pool {queued.pool}"
            if not queued.ask.labels <= facts.hosts[host].labels:
                yield f"{who} is on host {host}, which lacks a label"


def nvlink_is_one_island(facts: PlanLookups) -> Iterator[str]:
    """Who asks for NVLink gets all units of a host in one group."""
    for placement, queued, who in known_placements(facts):
        units = [facts.units[u] for u in placement.units]
        for host in sorted({u.host for u in units}) if queued.ask.nvlink else ():
            groups = {u.nvlink_group for u in units if u.host == host}
            if len(groups) > 1 or None in groups:
                yield f"{who} asked for NVLink and got groups {sorted(map(str, groups))} on host {host}"


def only_healthy_gpus_on_open_hosts(facts: PlanLookups) -> Iterator[str]:
    """Nothing starts on a host that takes no work, in its maintenance, or on a GPU that is not well."""
    for placement, _, who in known_placements(facts):
        units = [facts.units[u] for u in placement.units]
        for host in sorted({u.host for u in units}):
            if not facts.hosts[host].accepts or facts.under_maintenance(host, facts.now, facts.now + 1):
                yield f"{who} is on host {host}, which takes no work"
        if any(not u.well for u in units):
            yield f"{who} got a unit that is not well"


def cpu_and_memory_suffice(facts: PlanLookups) -> Iterator[str]:
    """What is asked for beside the GPUs is there on each host; of a host of unknown size nothing is said."""
    for placement, queued, who in known_placements(facts):
        for host in sorted({facts.units[u].host for u in placement.units}):
            row = facts.hosts[host]
            if queued.ask.cpu_milli and 0 < row.cpu_milli < facts.cpu_used(host):
                yield f"host {host} has no CPU left for {who}"
            if queued.ask.memory_mib and 0 < row.memory_mib < facts.memory_used(host):
                yield f"host {host} has no memory left for {who}"


def gates_hold(facts: PlanLookups) -> Iterator[str]:
    """Nothing starts behind a closed gate, during its back-off, for longer than the pool allows, or in no known pool."""
    for placement in facts.plan.placements:
        if placement.workload in facts.queued and facts.queued[placement.workload].pool not in facts.pools:
            yield f"workload {placement.workload} started in a pool that is not known"
    for _, queued, who in known_placements(facts):
        if queued.gate:
            yield f"{who} started behind the gate {queued.gate}"
        if queued.not_before > facts.now:
            yield f"{who} started before its back-off was over"
        if queued.max_runtime_seconds > facts.pools[queued.pool].policy.longest_runtime_seconds:
            yield f"{who} may run longer than the pool allows"


def static_pools_are_their_owners(facts: PlanLookups) -> Iterator[str]:
    """Only the owner's work starts in a static pool."""
    for _, queued, who in known_placements(facts):
        if facts.is_static(queued.pool) and facts.pools[queued.pool].team != queued.team:
            yield f"{who} started in another team's static pool"


def work_ends_in_time(facts: PlanLookups) -> Iterator[str]:
    """After its longest runtime or with its reservation; outside one, before the maintenance of its hosts begins."""
    for placement, queued, who in known_placements(facts):
        until = facts.now + queued.max_runtime_seconds
        reservation = facts.reservations.get(queued.reservation or 0)
        if reservation is not None:
            until = min(until, reservation.end)
        if placement.until != until:
            yield f"{who} has to end at {placement.until}, expected {until}"
        for host in sorted({facts.units[u].host for u in placement.units}):
            if queued.reservation is None and facts.under_maintenance(host, facts.now, until):
                yield f"{who} may run into the maintenance of host {host}"


def shares_serve_one_team(facts: PlanLookups) -> Iterator[str]:
    """Time-sliced shares of one GPU never serve two teams at once."""
    teams: dict[int, set[int]] = defaultdict(set)
    holders = [(r.team, r.units) for r in facts.snapshot.running]
    holders += [(queued.team, placement.units) for placement, queued, _ in known_placements(facts)]
    for team, units in holders:
        for unit in units:
            if unit in facts.units and facts.units[unit].profile.startswith("share"):
                teams[facts.units[unit].gpu].add(team)
    for gpu in sorted({facts.units[u].gpu for p in facts.placements for u in p.units}):
        if len(teams[gpu]) > 1:
            yield f"GPU {gpu} is time-sliced between teams {sorted(teams[gpu])}"


def slices_fill_used_gpus(facts: PlanLookups) -> Iterator[str]:
    """A slice is not put on an untouched GPU while a GPU of the same host that is in use has one left."""
    in_use = {facts.units[u].gpu for u in facts.holder if u in facts.units}
    free = {(u.host, kind_tuple(u)) for units in facts.left.values() for u in units if u.gpu in in_use}
    for placement, queued, who in known_placements(facts):
        if not queued.ask.profile or queued.ask.profile.startswith("share") or queued.reservation is not None:
            continue
        if (
            queued.id in facts.waited_for
            or queued.pool in facts.pools_with_earmarks_given_up | facts.pools_with_room_being_made
        ):
            continue  # a free slice of the GPU in use may be kept for somebody
        if queued.ask.nvlink or facts.unbound(queued.pool) or facts.set_aside:
            continue
        for unit in (facts.units[u] for u in placement.units):
            if unit.gpu not in in_use and (unit.host, kind_tuple(unit)) in free:
                yield f"{who} takes a slice of GPU {unit.gpu}, which was whole, beside one that is in use"


def placements_have_a_true_reason(facts: PlanLookups) -> Iterator[str]:
    """The code of a start is one of those for starts, and it is true; it has its numbers."""
    for placement, queued, who in known_placements(facts):
        if placement.code not in START_CODES:
            yield f"{who} starts with code {placement.code!r}"
            continue
        if not placement.numbers:
            yield f"{who} starts without numbers"
        expected = (
            {ReasonCode.FREE_BORROWED} if placement.borrowed_slots else {ReasonCode.FREE_WITHIN_GUARANTEE}
        )
        if queued.reservation is not None:
            expected = {ReasonCode.INSIDE_RESERVATION}
        elif facts.is_static(queued.pool):
            expected = {ReasonCode.OWN_STATIC_POOL}
        elif queued.id in facts.waited_for:
            expected = {ReasonCode.RECLAIMED_GUARANTEE, ReasonCode.OUTRANKED_WITHIN_TEAM}
        if placement.code not in expected:
            yield f"{who} starts with code {placement.code}, true is {' or '.join(sorted(expected))}"
