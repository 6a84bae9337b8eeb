"""Does a plan keep every promise? Written apart from the planner: plain loops over the rows, no shared rule.

``violations`` returns one sentence per broken promise, naming the rows; an empty list means the plan may be applied.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from scheduler.core.model import (
    Ask,
    Eviction,
    Host,
    Placement,
    Plan,
    Pool,
    PoolKind,
    Priority,
    Queued,
    Reservation,
    Running,
    Snapshot,
    Unit,
)
from scheduler.core.reasons import Code

STARTS = {
    Code.FREE_WITHIN_GUARANTEE,
    Code.FREE_BORROWED,
    Code.INSIDE_RESERVATION,
    Code.RECLAIMED_GUARANTEE,
    Code.OUTRANKED_WITHIN_TEAM,
    Code.OWN_STATIC_POOL,
}
GOINGS = {Code.EVICTED_FOR_GUARANTEE, Code.EVICTED_FOR_PRIORITY, Code.EVICTED_FOR_RESERVATION}
WAITINGS = {
    Code.NO_SUCH_HARDWARE,
    Code.TOO_BIG_FOR_ANY_HOST,
    Code.NOT_YOUR_POOL,
    Code.NO_QUOTA,
    Code.OVER_WORKLOAD_CAP,
    Code.OVER_RUNTIME_CAP,
    Code.OVER_QUOTA,
    Code.OVER_USER_CAP,
    Code.BUDGET_CLOSED,
    Code.DEPENDENCY,
    Code.BACKING_OFF,
    Code.RESERVATION_NOT_STARTED,
    Code.RESERVATION_OVER,
    Code.RESERVATION_NOT_YOURS,
    Code.HOST_CLOSED,
    Code.WAITS_FOR_UNITS,
    Code.WAITS_FOR_EVICTION,
    Code.HELD_FOR_RESERVATION,
    Code.HELD_FOR_MAINTENANCE,
    Code.BEHIND_OTHERS,
    Code.SPARE_CAPACITY_KEPT,
}

UNBOUND = {Code.RESERVED_UNITS_MISSING, Code.RESERVED_UNITS_IN_USE}


def violations(snapshot: Snapshot, plan: Plan, now: int) -> list[str]:
    """Every promise the plan breaks, in words for engineers."""
    return list(Check(snapshot, plan, now).all())


class Check:
    """One plan against its snapshot."""

    def __init__(self, snapshot: Snapshot, plan: Plan, now: int) -> None:
        self.snapshot, self.plan, self.now = snapshot, plan, now
        self.pools: dict[int, Pool] = {p.id: p for p in snapshot.pools}
        self.hosts: dict[int, Host] = {h.id: h for h in snapshot.hosts}
        self.units: dict[int, Unit] = {u.id: u for u in snapshot.units}
        self.queued: dict[int, Queued] = {q.id: q for q in snapshot.queued}
        self.running: dict[int, Running] = {r.id: r for r in snapshot.running}
        self.reservations: dict[int, Reservation] = {r.id: r for r in snapshot.reservations}
        self.quota = {(q.team, q.pool, q.model): q for q in snapshot.quotas}
        self.held = {unit: r.id for r in snapshot.running for unit in r.units}
        self.bound = {u: r.id for r in snapshot.reservations if r.end > now for u in r.units}
        self.bound |= {u: b.reservation for b in plan.bindings for u in b.units}
        # What was freed for a workload is its own until it starts, unless it is found that it can't and nobody leaves for it.
        given_up = {r.workload for r in plan.refusals if r.code != Code.WAITS_FOR_EVICTION}
        self.earmark = {u: q.id for q in snapshot.queued if q.id not in given_up for u in q.earmarked_units}
        for r in snapshot.running:
            if r.stopping and r.evicted_for_workload in self.queued:
                self.earmark |= dict.fromkeys(r.units, r.evicted_for_workload)
        self.placed = {p.workload: p for p in plan.placements}

    def all(self) -> Iterator[str]:
        if self.plan.epoch != self.snapshot.epoch:
            yield f"plan of epoch {self.plan.epoch} for a snapshot of epoch {self.snapshot.epoch}"
        yield from self._answers()
        known = [p for p in self.plan.placements if p.workload in self.queued and self._units_exist(p.units)]
        yield from self._units_once()
        for placement in known:
            yield from self._shape(placement, self.queued[placement.workload])
            yield from self._may_start(placement, self.queued[placement.workload])
        yield from self._shares_one_team(known)
        yield from self._cpu_and_memory(known)
        yield from self._quotas(known)
        yield from self._caps(known)
        yield from self._spare(known)
        yield from self._promises_kept(known)
        yield from self._holds(known)
        yield from self._bindings()
        yield from self._evictions()
        yield from self._refusals()
        yield from self._left_waiting(known)

    # -- every workload is answered, every unit is held once ---------------------------------------------------------

    def _answers(self) -> Iterator[str]:
        answers = Counter([p.workload for p in self.plan.placements] + [r.workload for r in self.plan.refusals])
        for workload in self.queued:
            if answers[workload] != 1:
                yield f"workload {workload} waits and has {answers[workload]} answers instead of one"
        for workload in answers:
            if workload not in self.queued:
                yield f"workload {workload} has an answer but does not wait"

    def _units_exist(self, units: Iterable[int]) -> bool:
        return all(unit in self.units for unit in units)

    def _units_once(self) -> Iterator[str]:
        taken = Counter(unit for p in self.plan.placements for unit in p.units)
        for unit, times in sorted(taken.items()):
            if unit not in self.units:
                yield f"unit {unit} does not exist"
            elif times > 1:
                yield f"unit {unit} is given to {times} workloads"
            elif unit in self.held:
                yield f"unit {unit} is still held by workload {self.held[unit]}"
        for placement in self.plan.placements:
            for unit in placement.units:
                owner = self.earmark.get(unit)
                if owner is not None and owner != placement.workload:
                    yield f"unit {unit} is kept for workload {owner}, not for {placement.workload}"

    # -- one placement -------------------------------------------------------------------------------------------------

    def _shape(self, placement: Placement, queued: Queued) -> Iterator[str]:
        """Whole gang, equal parts, the right hardware, open hosts."""
        ask, who = queued.ask, f"workload {placement.workload}"
        units = [self.units[u] for u in placement.units]
        per_host = Counter(u.host for u in units)
        if len(per_host) != ask.hosts or set(per_host.values()) != {ask.units}:
            yield f"{who} asked for {ask.hosts} x {ask.units} units and got {sorted(per_host.values())}"
        if len({(u.model, u.profile) for u in units}) > 1:
            yield f"{who} got units of different kinds"
        for unit in units:
            if not self._serves(unit, ask):
                yield f"{who} got unit {unit.id} ({unit.model} {unit.profile!r}), which it did not ask for"
        for host_id in per_host:
            host = self.hosts[host_id]
            if host.pool != queued.pool:
                yield f"{who} got units of pool {host.pool}, it waits in pool {queued.pool}"
            if not ask.labels <= host.labels:
                yield f"{who} is on host {host_id}, which lacks a label"
            if not host.accepts or self._under_maintenance(host_id, self.now, self.now + 1):
                yield f"{who} is on host {host_id}, which takes no work"
            groups = {u.nvlink_group for u in units if u.host == host_id}
            if ask.nvlink and (len(groups) > 1 or None in groups):
                yield f"{who} asked for NVLink and got groups {sorted(map(str, groups))} on host {host_id}"
        if any(not u.well for u in units):
            yield f"{who} got a unit that is not well"
        if placement.code not in STARTS:
            yield f"{who} starts with code {placement.code!r}"
        if not 0 <= placement.borrowed_slots <= sum(u.slots for u in units):
            yield f"{who} borrows {placement.borrowed_slots} slots of {sum(u.slots for u in units)}"
        if placement.units != tuple(sorted(placement.units)):
            yield f"{who}: units are not sorted"

    def _serves(self, unit: Unit, ask: Ask) -> bool:
        return (
            unit.profile == ask.profile
            and (not ask.models or unit.model in ask.models)
            and unit.memory_mib >= ask.min_memory_mib
            and unit.compute_capability >= ask.min_compute_capability
        )

    def _under_maintenance(self, host: int, start: int, end: int) -> bool:
        return any(m.host == host and m.start < end and m.end > start for m in self.snapshot.maintenance)

    def _may_start(self, placement: Placement, queued: Queued) -> Iterator[str]:
        """Gates, back-off, reservation, static pool, runtime, maintenance."""
        who, pool = f"workload {placement.workload}", self.pools[queued.pool]
        if queued.gate:
            yield f"{who} started behind the gate {queued.gate}"
        if queued.not_before > self.now:
            yield f"{who} started before its back-off was over"
        if queued.max_runtime_seconds > pool.policy.longest_runtime_seconds:
            yield f"{who} may run longer than the pool allows"
        if pool.kind is PoolKind.STATIC and pool.team != queued.team:
            yield f"{who} started in another team's static pool"
        until = self.now + queued.max_runtime_seconds
        if queued.reservation is None:
            for unit in placement.units:
                if unit in self.bound:
                    yield f"{who} is a stranger on unit {unit} of reservation {self.bound[unit]}"
        else:
            reservation = self.reservations.get(queued.reservation)
            if reservation is None or not reservation.start <= self.now < reservation.end:
                yield f"{who} started in a reservation that is not on"
                return
            until = min(until, reservation.end)
            if (reservation.team, reservation.project) != (queued.team, queued.project):
                yield f"{who} started in a reservation of somebody else"
            if any(self.bound.get(unit) != reservation.id for unit in placement.units):
                yield f"{who} is not inside its reservation"
        if placement.until != until:
            yield f"{who} has to end at {placement.until}, expected {until}"
        for host in {self.units[u].host for u in placement.units}:
            if self._under_maintenance(host, self.now, until) and queued.reservation is None:
                yield f"{who} may run into the maintenance of host {host}"

    def _shares_one_team(self, known: list[Placement]) -> Iterator[str]:
        teams: dict[int, set[int]] = defaultdict(set)
        holders = [(r.team, r.units) for r in self.snapshot.running]
        holders += [(self.queued[p.workload].team, p.units) for p in known]
        for team, units in holders:
            for unit in units:
                if unit in self.units and self.units[unit].profile.startswith("share"):
                    teams[self.units[unit].gpu].add(team)
        touched = {self.units[u].gpu for p in known for u in p.units}
        for gpu in sorted(touched):
            if len(teams[gpu]) > 1:
                yield f"GPU {gpu} is time-sliced between teams {sorted(teams[gpu])}"

    def _cpu_and_memory(self, known: list[Placement]) -> Iterator[str]:
        cpu: Counter[int] = Counter()
        memory: Counter[int] = Counter()
        rows = [(r.units, r.cpu_milli, r.memory_mib) for r in self.snapshot.running]
        rows += [
            (p.units, self.queued[p.workload].ask.cpu_milli, self.queued[p.workload].ask.memory_mib) for p in known
        ]
        for units, cpu_milli, memory_mib in rows:
            for host in {self.units[u].host for u in units if u in self.units}:
                cpu[host] += cpu_milli
                memory[host] += memory_mib
        for placement in known:
            ask = self.queued[placement.workload].ask
            for host in {self.units[u].host for u in placement.units}:
                if ask.cpu_milli and 0 < self.hosts[host].cpu_milli < cpu[host]:
                    yield f"host {host} has no CPU left for workload {placement.workload}"
                if ask.memory_mib and 0 < self.hosts[host].memory_mib < memory[host]:
                    yield f"host {host} has no memory left for workload {placement.workload}"

    # -- quotas, caps, spare -------------------------------------------------------------------------------------------

    def _held_slots(self, pool: int, team: int, model: str, firm: bool = False) -> int:
        """Slots a team holds: running work outside reservations (``firm``: only what may not be evicted), and
        reservations that have their units."""
        mine_running = (r for r in self.snapshot.running if r.team == team and r.reservation is None)
        units = [u for r in mine_running if not (firm and r.preemptible) for u in r.units]
        units += [u for u, r in self.bound.items() if self.reservations[r].team == team]
        mine = (self.units[u] for u in units if u in self.units)
        return sum(u.slots for u in mine if u.model == model and self.hosts[u.host].pool == pool)

    def _quotas(self, known: list[Placement]) -> Iterator[str]:
        groups: dict[tuple[int, int, str], list[Placement]] = defaultdict(list)
        for placement in known:
            queued = self.queued[placement.workload]
            if queued.reservation is None and placement.units:
                groups[queued.pool, queued.team, self.units[placement.units[0]].model].append(placement)
        for (pool, team, model), placements in sorted(groups.items()):
            if self.pools[pool].kind is PoolKind.STATIC:
                continue
            yield from self._quota(pool, team, model, placements)

    def _quota(self, pool: int, team: int, model: str, placements: list[Placement]) -> Iterator[str]:
        where = f"team {team} in pool {pool} on {model}"
        quota = self.quota.get((team, pool, model))
        if quota is None:
            yield f"{where} has no quota and got units"
            return
        before = self._held_slots(pool, team, model)
        slots = {p.workload: sum(self.units[u].slots for u in p.units) for p in placements}
        after = before + sum(slots.values())
        if quota.borrow_limit is not None and after > quota.guaranteed + quota.borrow_limit:
            yield f"{where} holds {after}, above guarantee {quota.guaranteed} and borrow limit {quota.borrow_limit}"
        firm = [p for p in placements if not self.queued[p.workload].preemptible]
        firm_slots = sum(slots[p.workload] for p in firm)
        if firm and self._held_slots(pool, team, model, firm=True) + firm_slots > quota.guaranteed:
            yield f"{where} borrows for work that is not preemptible"
        barred = [p for p in placements if p not in firm and not self.queued[p.workload].may_borrow]
        if barred and before + sum(slots[p.workload] for p in barred) > quota.guaranteed:
            yield f"{where} borrows for work that may not borrow"
        if any(p.borrowed_slots for p in [*firm, *barred]):
            yield f"{where}: work that may not borrow is marked as borrowed"
        borrowed = max(0, after - quota.guaranteed) - max(0, before - quota.guaranteed) - firm_slots
        if sum(p.borrowed_slots for p in placements) < borrowed:
            yield f"{where} borrows {borrowed} slots, the plan says {sum(p.borrowed_slots for p in placements)}"

    def _caps(self, known: list[Placement]) -> Iterator[str]:
        held: Counter[tuple[int, int]] = Counter()
        for running in self.snapshot.running:
            held[running.pool, running.user] += sum(self.units[u].slots for u in running.units if u in self.units)
        for placement in known:
            queued = self.queued[placement.workload]
            slots = sum(self.units[u].slots for u in placement.units)
            held[queued.pool, queued.user] += slots
            cap = self.pools[queued.pool].policy.most_slots_per_workload
            if cap is not None and slots > cap:
                yield f"workload {queued.id} holds {slots} slots, the cap is {cap}"
        for pool, user in sorted({(self.queued[p.workload].pool, self.queued[p.workload].user) for p in known}):
            cap = self.pools[pool].policy.most_slots_per_user
            if cap is not None and held[pool, user] > cap:
                yield f"user {user} holds {held[pool, user]} slots in pool {pool}, the cap is {cap}"

    def _is_usable(self, unit: Unit) -> bool:
        host = self.hosts[unit.host]
        return unit.well and host.accepts and not self._under_maintenance(host.id, self.now, self.now + 1)

    def _spare(self, known: list[Placement]) -> Iterator[str]:
        for pool in self.snapshot.pools:
            spare = pool.policy.spare_slots
            ordinary = [
                self.queued[p.workload]
                for p in known
                if self.queued[p.workload].pool == pool.id
                and self.queued[p.workload].priority is not Priority.CRITICAL
                and self.queued[p.workload].reservation is None
            ]
            if not spare or not ordinary:
                continue
            free = sum(
                u.slots
                for u in self.units.values()
                if self.hosts[u.host].pool == pool.id
                and self._is_usable(u)
                and u.id not in self.held
                and u.id not in self.bound
            )
            taken = sum(self.units[u].slots for q in ordinary for u in self.placed[q.id].units)
            if free - taken < spare:
                yield f"pool {pool.id} keeps {free - taken} slots free after ordinary work, its spare is {spare}"

    # -- what is promised for later ------------------------------------------------------------------------------------

    def _stays_until(self, running: Running) -> int:
        policy = self.pools[running.pool].policy
        lead = policy.notice_seconds + policy.grace_seconds
        if running.stopping:
            return running.stop_by if running.stop_by is not None else self.now + policy.grace_seconds
        if not running.preemptible:
            return running.until
        return min(running.until, max(self.now, running.started + policy.minimum_runtime_seconds) + lead)

    def _promises_kept(self, known: list[Placement]) -> Iterator[str]:
        """A reservation that could be kept before the plan can still be kept after it, alone and with its rivals."""
        before: dict[int, int] = {}
        for running in self.snapshot.running:
            if running.reservation is None:
                before |= dict.fromkeys(running.units, self._stays_until(running))
        after = dict(before)
        for placement in known:
            queued = self.queued[placement.workload]
            policy = self.pools[queued.pool].policy
            stays = queued.max_runtime_seconds
            if queued.preemptible:
                soonest = policy.minimum_runtime_seconds + policy.notice_seconds + policy.grace_seconds
                stays = min(stays, soonest)
            if queued.reservation is None:
                after |= dict.fromkeys(placement.units, self.now + stays)
        unbound = [r for r in self.snapshot.reservations if not r.units and r.end > self.now]
        unbound = [r for r in unbound if r.id not in self.bound.values()]
        possible = [r for r in sorted(unbound, key=lambda r: r.id) if self._can_keep(r, before)]
        for reservation in possible:
            rivals = [
                r
                for r in possible
                if r.pool == reservation.pool and r.start <= reservation.start < r.end and r.ask.models
            ]
            if not self._can_keep(reservation, after):
                yield f"reservation {reservation.id} could be kept before the plan and can't after it"
            elif self._enough(reservation, rivals, before) and not self._enough(reservation, rivals, after):
                yield f"reservations {[r.id for r in rivals]} can't all be kept after the plan"

    def _open_for(self, reservation: Reservation, stays: dict[int, int]) -> list[Unit]:
        start = reservation.start
        policy = self.pools[reservation.pool].policy
        start = max(start, self.now + policy.notice_seconds + policy.grace_seconds)
        found = []
        for unit in self.units.values():
            rival = self.reservations.get(self.bound.get(unit.id, 0))
            if (
                self.hosts[unit.host].pool == reservation.pool
                and unit.well
                and self.hosts[unit.host].accepts
                and stays.get(unit.id, 0) <= start
                and (rival is None or rival.end <= start)
                and not self._under_maintenance(unit.host, start, reservation.end)
            ):
                found.append(unit)
        return found

    def _can_keep(self, reservation: Reservation, stays: dict[int, int]) -> bool:
        ask = reservation.ask
        units = [u for u in self._open_for(reservation, stays) if self._serves(u, ask)]
        for model in sorted({u.model for u in units}):
            per_host = Counter(u.host for u in units if u.model == model and ask.labels <= self.hosts[u.host].labels)
            if sum(count >= ask.units for count in per_host.values()) >= ask.hosts:
                return True
        return False

    def _enough(self, reservation: Reservation, rivals: list[Reservation], stays: dict[int, int]) -> bool:
        models = {m for r in rivals for m in r.ask.models}
        units = [u for u in self._open_for(reservation, stays) if u.model in models]
        return len(units) >= sum(r.ask.total_units for r in rivals)

    def _holds(self, known: list[Placement]) -> Iterator[str]:
        """Lower-ranked work of the same team leaves set-aside units alone unless it is expected to be gone in time."""
        for refusal in self.plan.refusals:
            waiting = self.queued.get(refusal.workload)
            if waiting is None or not refusal.held_units or refusal.expected_start is None:
                continue
            for placement in known:
                queued = self.queued[placement.workload]
                lower = queued.team == waiting.team and queued.priority < waiting.priority
                if queued.id in self.earmark.values() or queued.reservation is not None:
                    continue  # its turn came first
                expected = self.now + min(queued.max_runtime_seconds, 2 * queued.predicted_seconds)
                on_held = set(refusal.held_units) & set(placement.units)
                if lower and queued.pool == waiting.pool and on_held and expected > refusal.expected_start:
                    yield f"workload {queued.id} delays workload {waiting.id}, for which its units are set aside"

    # -- bindings --------------------------------------------------------------------------------------------------------

    def _bindings(self) -> Iterator[str]:
        taken = Counter(u for b in self.plan.bindings for u in b.units)
        taken.update(u for r in self.snapshot.reservations if r.end > self.now for u in r.units)
        yield from self._unbound()
        for binding in self.plan.bindings:
            who = f"reservation {binding.reservation}"
            reservation = self.reservations.get(binding.reservation)
            if reservation is None or reservation.units:
                yield f"{who} is unknown or bound already"
                continue
            if not reservation.start <= self.now < reservation.end:
                yield f"{who} is bound outside its window"
            units = [self.units[u] for u in binding.units if u in self.units]
            per_host = Counter(u.host for u in units)
            if len(units) != len(binding.units) or not all(self._serves(u, reservation.ask) for u in units):
                yield f"{who} is bound to units it did not ask for"
            if len(per_host) != reservation.ask.hosts or set(per_host.values()) != {reservation.ask.units}:
                yield f"{who} is bound to {sorted(per_host.values())} units per host"
            for unit in binding.units:
                if unit in self.held:
                    yield f"{who} is bound to unit {unit}, which workload {self.held[unit]} still holds"
                if taken[unit] > 1:
                    yield f"unit {unit} is bound to two reservations"

    def _unbound(self) -> Iterator[str]:
        """One that has begun is bound, or it is said why not."""
        bound = {b.reservation for b in self.plan.bindings}
        said = Counter(u.reservation for u in self.plan.unbound)
        for reservation in self.snapshot.reservations:
            who = f"reservation {reservation.id}"
            begun = reservation.pool in self.pools and reservation.start <= self.now < reservation.end
            waits = begun and not reservation.units and reservation.id not in bound
            if waits and said[reservation.id] != 1:
                yield f"{who} has begun without units, and {said[reservation.id]} reasons are given"
            if not waits and said[reservation.id]:
                yield f"{who} does not wait for units, and a reason for that is given"
        for unbound in self.plan.unbound:
            if unbound.code not in UNBOUND or not unbound.numbers:
                yield f"reservation {unbound.reservation} waits with code {unbound.code} and {len(unbound.numbers)} numbers"

    # -- evictions ---------------------------------------------------------------------------------------------------------

    def _evictions(self) -> Iterator[str]:
        twice = Counter(e.workload for e in self.plan.evictions)
        for eviction in self.plan.evictions:
            who = f"eviction of workload {eviction.workload}"
            victim = self.running.get(eviction.workload)
            if victim is None:
                yield f"{who}: it does not run"
                continue
            yield from self._eviction(who, eviction, victim)
            if twice[eviction.workload] > 1:
                yield f"{who} is planned twice"
        yield from self._borrowed_only()

    def _eviction(self, who: str, eviction: Eviction, victim: Running) -> Iterator[str]:
        policy = self.pools[victim.pool].policy
        if victim.stopping:
            yield f"{who}: it was told already"
        if not victim.preemptible:
            yield f"{who}: it is not preemptible"
        if self.now < victim.started + policy.minimum_runtime_seconds:
            yield f"{who} before its minimum runtime"
        if eviction.stop_at < self.now + policy.notice_seconds:
            yield f"{who} without its whole notice"
        if eviction.code not in GOINGS:
            yield f"{who} with code {eviction.code!r}"
        if (eviction.for_workload is None) == (eviction.for_reservation is None):
            yield f"{who} is not for exactly one beneficiary"
        elif eviction.for_workload is not None:
            yield from self._eviction_for_workload(who, eviction.for_workload, victim)
        elif eviction.for_reservation is not None:
            reservation = self.reservations.get(eviction.for_reservation)
            lead = policy.notice_seconds + policy.grace_seconds
            if reservation is None or reservation.pool != victim.pool or self.now < reservation.start - lead:
                yield f"{who} for a reservation that does not start yet"
            elif victim.until <= reservation.start:
                yield f"{who}, which would have ended before the reservation starts"
            elif not any(self._serves(self.units[u], reservation.ask) for u in victim.units):
                yield f"{who} frees nothing the reservation asked for"

    def _eviction_for_workload(self, who: str, workload: int, victim: Running) -> Iterator[str]:
        queued = self.queued.get(workload)
        if queued is None or queued.pool != victim.pool:
            yield f"{who} for workload {workload}, which does not wait in its pool"
            return
        refusal = next((r for r in self.plan.refusals if r.workload == workload), None)
        if refusal is None or refusal.code != Code.WAITS_FOR_EVICTION:
            yield f"{who} for workload {workload}, which does not wait for it"
        if queued.evicted_by == victim.id:
            yield f"{who}: workload {workload} had to make room for it, and now evicts it back"
        if not any(self._serves(self.units[u], queued.ask) for u in victim.units):
            yield f"{who} frees nothing that workload {workload} asked for"
        if victim.team == queued.team:
            if victim.priority >= queued.priority:
                yield f"{who}: its priority is not lower"
            if victim.reservation != queued.reservation:
                yield f"{who}: it runs inside another reservation"
            return
        if victim.reservation is not None:
            yield f"{who}: it runs inside a reservation of another team"
        models = {self.units[u].model for u in victim.units}
        if not any(self._within_guarantee(queued, model) for model in models):
            yield f"{who}: workload {workload} is not within its team's guarantee"

    def _within_guarantee(self, queued: Queued, model: str) -> bool:
        pool = self.pools[queued.pool]
        if pool.kind is PoolKind.STATIC:
            return pool.team == queued.team
        quota = self.quota.get((queued.team, queued.pool, model))
        if quota is None or queued.reservation is not None:
            return False
        slots = max(
            (u.slots for u in self.units.values() if u.model == model and self._serves(u, queued.ask)), default=0
        )
        held = self._held_slots(queued.pool, queued.team, model)
        return held + slots * queued.ask.total_units <= quota.guaranteed

    def _borrowed_only(self) -> Iterator[str]:
        """Each team that loses work to others still had something borrowed when the last of it was taken."""
        lost: dict[tuple[int, int, str], list[int]] = defaultdict(list)
        own: Counter[tuple[int, int, str]] = Counter()
        for eviction in self.plan.evictions:
            victim = self.running.get(eviction.workload)
            if victim is None:
                continue
            slots: Counter[str] = Counter()
            for unit in victim.units:
                slots[self.units[unit].model] += self.units[unit].slots
            beneficiary = self.queued.get(eviction.for_workload or 0)
            for model, count in slots.items():
                if beneficiary is not None and beneficiary.team != victim.team:
                    lost[victim.pool, victim.team, model].append(count)
                elif eviction.for_reservation is not None:
                    own[victim.pool, victim.team, model] += count
        for (pool, team, model), counts in sorted(lost.items()):
            if self.pools[pool].kind is PoolKind.STATIC and self.pools[pool].team == team:
                yield f"team {team} loses work in its own static pool {pool}"
                continue
            quota = self.quota.get((team, pool, model))
            leaving = sum(
                self.units[u].slots
                for r in self.snapshot.running
                if r.team == team and r.stopping and r.reservation is None and r.pool == pool
                for u in r.units
                if self.units[u].model == model
            )
            guaranteed = quota.guaranteed if quota and self.pools[pool].kind is PoolKind.DYNAMIC else 0
            excess = self._held_slots(pool, team, model) - leaving - guaranteed
            excess -= own[pool, team, model]
            if sum(counts) - max(counts) >= excess:
                yield f"team {team} in pool {pool} loses {sum(counts)} slots of {model} and borrowed only {excess}"

    # -- refusals ------------------------------------------------------------------------------------------------------------

    def _refusals(self) -> Iterator[str]:
        positions: dict[int, list[int]] = defaultdict(list)
        for refusal in self.plan.refusals:
            who, queued = f"refusal of workload {refusal.workload}", self.queued.get(refusal.workload)
            if refusal.code not in WAITINGS:
                yield f"{who} with code {refusal.code!r}"
            if not refusal.numbers and not (queued is not None and queued.gate == refusal.code):
                yield f"{who} ({refusal.code}) without numbers"
            if [name for name, _ in refusal.numbers] != sorted(name for name, _ in refusal.numbers):
                yield f"{who}: numbers are not sorted"
            if refusal.expected_start is not None and refusal.expected_start <= self.now:
                yield f"{who} expects a start in the past"
            if queued is not None and queued.gate and refusal.code != queued.gate:
                yield f"{who} hides its gate {queued.gate}"
            if refusal.code == Code.WAITS_FOR_EVICTION and not refusal.blockers:
                yield f"{who} waits for an eviction of nobody"
            if queued is not None and refusal.position is not None:
                positions[queued.pool].append(refusal.position)
        for pool, taken in sorted(positions.items()):
            if sorted(taken) != list(range(1, len(taken) + 1)):
                yield f"positions in pool {pool} are {sorted(taken)}"

    def _left_waiting(self, known: list[Placement]) -> Iterator[str]:
        """Nothing waits for units that lie free, in a pool where nothing else could be the reason."""
        taken = {u for p in known for u in p.units} | set(self.held) | set(self.bound) | set(self.earmark)
        busy = {r.pool for r in self.snapshot.reservations if r.end > self.now}
        busy |= {
            self.hosts[m.host].pool for m in self.snapshot.maintenance if m.host in self.hosts and m.end > self.now
        }
        busy |= {p.id for p in self.snapshot.pools if p.policy.spare_slots}
        busy |= {self.queued[r.workload].pool for r in self.plan.refusals if r.workload in self.queued and r.held_units}
        busy |= {self.queued[e.for_workload].pool for e in self.plan.evictions if e.for_workload in self.queued}
        for refusal in self.plan.refusals:
            queued = self.queued.get(refusal.workload)
            if queued is None or queued.pool in busy or refusal.code != Code.WAITS_FOR_UNITS:
                continue
            free = [u for u in self.units.values() if u.id not in taken and self._is_usable(u)]
            free = [u for u in free if self.hosts[u.host].pool == queued.pool and self._serves(u, queued.ask)]
            plain = not (queued.ask.nvlink or queued.ask.cpu_milli or queued.ask.memory_mib or queued.ask.profile)
            if plain and queued.reservation is None and self._fits_plainly(queued, free, known):
                yield f"workload {queued.id} waits for units that lie free"

    def _fits_plainly(self, queued: Queued, free: list[Unit], known: list[Placement]) -> bool:
        for model in sorted({u.model for u in free}):
            per_host = Counter(
                u.host for u in free if u.model == model and queued.ask.labels <= self.hosts[u.host].labels
            )
            quota = self.quota.get((queued.team, queued.pool, model))
            placed = sum(
                self.units[u].slots
                for p in known
                for u in p.units
                if self.queued[p.workload].team == queued.team and self.units[u].model == model
            )
            held = self._held_slots(queued.pool, queued.team, model) + placed
            need = max(u.slots for u in free if u.model == model) * queued.ask.total_units
            if quota is not None and held + need <= quota.guaranteed:
                cap = self.pools[queued.pool].policy.most_slots_per_user
                if cap is None and sum(count >= queued.ask.units for count in per_host.values()) >= queued.ask.hosts:
                    return True
        return False
