"""What starts: on which units, and may it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from scheduler.core.model import Placement, Queued
from scheduler.core.reasons import Code
from scheduler.core.verify.facts import Facts, kind_of, serves

STARTS = {
    Code.FREE_WITHIN_GUARANTEE,
    Code.FREE_BORROWED,
    Code.INSIDE_RESERVATION,
    Code.RECLAIMED_GUARANTEE,
    Code.OUTRANKED_WITHIN_TEAM,
    Code.OWN_STATIC_POOL,
}


def each(facts: Facts) -> Iterator[tuple[Placement, Queued, str]]:
    """Every placement of a known workload, with its row and its name in a sentence."""
    for placement in facts.placements:
        yield placement, facts.queued[placement.workload], f"workload {placement.workload}"


def a_unit_is_held_once(facts: Facts) -> Iterator[str]:
    """By one workload at any instant: not given twice, and not while somebody is on it."""
    taken = Counter(unit for p in facts.plan.placements for unit in p.units)
    for unit, times in sorted(taken.items()):
        if unit not in facts.units:
            yield f"unit {unit} does not exist"
        elif times > 1:
            yield f"unit {unit} is given to {times} workloads"
        elif unit in facts.holder:
            yield f"unit {unit} is still held by workload {facts.holder[unit]}"


def what_was_freed_is_kept(facts: Facts) -> Iterator[str]:
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


def gangs_start_whole(facts: Facts) -> Iterator[str]:
    """On all the hosts asked for, with as many units on each, all of one kind."""
    for placement, queued, who in each(facts):
        units = [facts.units[u] for u in placement.units]
        per_host = Counter(u.host for u in units)
        if len(per_host) != queued.ask.hosts or set(per_host.values()) != {queued.ask.units}:
            yield f"{who} asked for {queued.ask.hosts} x {queued.ask.units} units and got {sorted(per_host.values())}"
        if len({kind_of(u) for u in units}) > 1:
            yield f"{who} got units of different kinds"


def an_ask_gets_what_it_names(facts: Facts) -> Iterator[str]:
    """Model, profile, memory, compute capability, labels, the pool it waits in."""
    for placement, queued, who in each(facts):
        for unit in (facts.units[u] for u in placement.units):
            if not serves(unit, queued.ask):
                yield f"{who} got unit {unit.id} ({unit.model} {unit.profile!r}), which it did not ask for"
        for host in sorted({facts.units[u].host for u in placement.units}):
            if facts.hosts[host].pool != queued.pool:
                yield f"{who} got units of pool {facts.hosts[host].pool}, it waits in pool {queued.pool}"
            if not queued.ask.labels <= facts.hosts[host].labels:
                yield f"{who} is on host {host}, which lacks a label"


def nvlink_is_one_island(facts: Facts) -> Iterator[str]:
    """Who asks for NVLink gets all units of a host in one group."""
    for placement, queued, who in each(facts):
        units = [facts.units[u] for u in placement.units]
        for host in sorted({u.host for u in units}) if queued.ask.nvlink else ():
            groups = {u.nvlink_group for u in units if u.host == host}
            if len(groups) > 1 or None in groups:
                yield f"{who} asked for NVLink and got groups {sorted(map(str, groups))} on host {host}"


def only_hosts_and_gpus_in_order(facts: Facts) -> Iterator[str]:
    """Nothing starts on a host that takes no work, in its maintenance, or on a GPU that is not well."""
    for placement, _, who in each(facts):
        units = [facts.units[u] for u in placement.units]
        for host in sorted({u.host for u in units}):
            if not facts.hosts[host].accepts or facts.under_maintenance(host, facts.now, facts.now + 1):
                yield f"{who} is on host {host}, which takes no work"
        if any(not u.well for u in units):
            yield f"{who} got a unit that is not well"


def cpu_and_memory_suffice(facts: Facts) -> Iterator[str]:
    """What is asked for beside the GPUs is there on each host; of a host of unknown size nothing is said."""
    for placement, queued, who in each(facts):
        for host in sorted({facts.units[u].host for u in placement.units}):
            row = facts.hosts[host]
            if queued.ask.cpu_milli and 0 < row.cpu_milli < facts.cpu_used(host):
                yield f"host {host} has no CPU left for {who}"
            if queued.ask.memory_mib and 0 < row.memory_mib < facts.memory_used(host):
                yield f"host {host} has no memory left for {who}"


def gates_hold(facts: Facts) -> Iterator[str]:
    """Nothing starts behind a closed gate, during its back-off, for longer than the pool allows, or in no known pool."""
    for placement in facts.plan.placements:
        if placement.workload in facts.queued and facts.queued[placement.workload].pool not in facts.pools:
            yield f"workload {placement.workload} started in a pool that is not known"
    for _, queued, who in each(facts):
        if queued.gate:
            yield f"{who} started behind the gate {queued.gate}"
        if queued.not_before > facts.now:
            yield f"{who} started before its back-off was over"
        if queued.max_runtime_seconds > facts.pools[queued.pool].policy.longest_runtime_seconds:
            yield f"{who} may run longer than the pool allows"


def static_pools_are_their_owners(facts: Facts) -> Iterator[str]:
    """Only the owner's work starts in a static pool."""
    for _, queued, who in each(facts):
        if facts.is_static(queued.pool) and facts.pools[queued.pool].team != queued.team:
            yield f"{who} started in another team's static pool"


def work_ends_in_time(facts: Facts) -> Iterator[str]:
    """After its longest runtime or with its reservation; outside one, before the maintenance of its hosts begins."""
    for placement, queued, who in each(facts):
        until = facts.now + queued.max_runtime_seconds
        reservation = facts.reservations.get(queued.reservation or 0)
        if reservation is not None:
            until = min(until, reservation.end)
        if placement.until != until:
            yield f"{who} has to end at {placement.until}, expected {until}"
        for host in sorted({facts.units[u].host for u in placement.units}):
            if queued.reservation is None and facts.under_maintenance(host, facts.now, until):
                yield f"{who} may run into the maintenance of host {host}"


def shares_serve_one_team(facts: Facts) -> Iterator[str]:
    """Time-sliced shares of one GPU never serve two teams at once."""
    teams: dict[int, set[int]] = defaultdict(set)
    holders = [(r.team, r.units) for r in facts.snapshot.running]
    holders += [(queued.team, placement.units) for placement, queued, _ in each(facts)]
    for team, units in holders:
        for unit in units:
            if unit in facts.units and facts.units[unit].profile.startswith("share"):
                teams[facts.units[unit].gpu].add(team)
    for gpu in sorted({facts.units[u].gpu for p in facts.placements for u in p.units}):
        if len(teams[gpu]) > 1:
            yield f"GPU {gpu} is time-sliced between teams {sorted(teams[gpu])}"


def slices_fill_used_gpus(facts: Facts) -> Iterator[str]:
    """A slice is not put on an untouched GPU while a GPU of the same host that is in use has one left."""
    in_use = {facts.units[u].gpu for u in facts.holder if u in facts.units}
    free = {(u.host, kind_of(u)) for units in facts.left.values() for u in units if u.gpu in in_use}
    for placement, queued, who in each(facts):
        if not queued.ask.profile or queued.ask.profile.startswith("share") or queued.reservation is not None:
            continue
        if queued.id in facts.waited_for or queued.pool in facts.pools_with_earmarks_given_up | facts.pools_with_room_being_made:
            continue  # a free slice of the GPU in use may be kept for somebody
        if queued.ask.nvlink or facts.unbound(queued.pool) or facts.set_aside:
            continue
        for unit in (facts.units[u] for u in placement.units):
            if unit.gpu not in in_use and (unit.host, kind_of(unit)) in free:
                yield f"{who} takes a slice of GPU {unit.gpu}, which was whole, beside one that is in use"


def starts_say_why(facts: Facts) -> Iterator[str]:
    """The code of a start is one of those for starts, and it is true; it has its numbers."""
    for placement, queued, who in each(facts):
        if placement.code not in STARTS:
            yield f"{who} starts with code {placement.code!r}"
            continue
        if not placement.numbers:
            yield f"{who} starts without numbers"
        expected = {Code.FREE_BORROWED} if placement.borrowed_slots else {Code.FREE_WITHIN_GUARANTEE}
        if queued.reservation is not None:
            expected = {Code.INSIDE_RESERVATION}
        elif facts.is_static(queued.pool):
            expected = {Code.OWN_STATIC_POOL}
        elif queued.id in facts.waited_for:
            expected = {Code.RECLAIMED_GUARANTEE, Code.OUTRANKED_WITHIN_TEAM}
        if placement.code not in expected:
            yield f"{who} starts with code {placement.code}, true is {' or '.join(sorted(expected))}"
