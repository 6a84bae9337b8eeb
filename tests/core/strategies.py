"""Provide Hypothesis strategies for snapshots: pools, teams, quotas, workloads, reservations, maintenance.

The snapshots are consistent, as rows of the database are: no unit is held twice, guarantees fit the pool, a
reservation's units are held only by its own work, and an earmarked unit has one owner. Everything else may
occur. The choices favour pools in which the planner has to decide: most requests name hardware of the pool,
and guarantees are close to the units that the teams hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import strategies as st

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
from scheduler.core.reasons import ReasonCode

T = TypeVar("T")

NOW = 1_000_000
HOUR = 3600
MODELS = ("A100-40GB", "H100-80GB", "L40S-48GB")
MEMORY = {"A100-40GB": 40_960, "H100-80GB": 81_920, "L40S-48GB": 46_068}
CAPABILITY = {"A100-40GB": 80, "H100-80GB": 90, "L40S-48GB": 89}
SMALL, LARGE, SHARE = "1g.5gb", "3g.20gb", "share-1/4"
CUTS = {"": 1, SMALL: 7, LARGE: 2, SHARE: 4}  # profile: parts of a GPU
TEAMS = (1, 2, 3)
NO_LABELS: frozenset[tuple[str, str]] = frozenset()


class Chooser:
    """A source of drawn values. ``rarely(n)`` returns True about one time in ``n``."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def one_of(self, *options: T) -> T:
        return self.draw(st.sampled_from(options))

    def of(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))

    def between(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def rarely(self, times: int) -> bool:
        return self.between(1, times) == times // 2 + 1  # Hypothesis draws the ends of a range more often


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Return a snapshot at ``NOW`` of one or two pools with all kinds of rows."""
    choose = Chooser(draw)
    whole = Snapshot(
        epoch=choose.between(1, 9), teams=tuple(TeamInfo(t, f"team-{t}", choose.between(1, 3)) for t in TEAMS)
    )
    for pool in range(1, choose.one_of(1, 1, 2) + 1):
        whole = PoolMaker(choose, pool).added_to(whole)
    if choose.rarely(30):  # waits in a pool that was deleted
        lost = replace(whole.queued[0], id=99_999, pool=77, reservation=None, earmarked_units=())
        whole = replace(whole, queued=(*whole.queued, lost))
    return whole


@dataclass(frozen=True)
class WindowAsked:
    """A request to reserve units for ``[start, end)``."""

    ask: Ask
    team: int
    pool: int
    start: int
    end: int
    may_exceed_guarantee: bool


@st.composite
def windows(draw: st.DrawFn, snapshot: Snapshot) -> WindowAsked:
    """Return a reservation that a user could request in one of the pools."""
    choose = Chooser(draw)
    pool = choose.of(snapshot.pools)
    hosts = {h.id for h in snapshot.hosts if h.pool == pool.id}
    like = choose.of([u for u in snapshot.units if u.host in hosts])
    start = NOW + choose.one_of(0, 60, 1800, 3 * HOUR, 7 * HOUR)
    return WindowAsked(
        Ask(choose.one_of(1, 2, 4, 8), choose.one_of(1, 1, 2), (like.model,), like.profile),
        choose.of(TEAMS),
        pool.id,
        start,
        start + choose.one_of(1800, 4 * HOUR, 24 * HOUR),
        choose.rarely(4),
    )


class PoolMaker:
    """Builds one pool by random choices.

    Each choice depends on earlier choices, so that the rows are consistent.
    """

    def __init__(self, choose: Chooser, pool: int) -> None:
        self.choose, self.pool = choose, pool
        self.hosts: list[HostInfo] = []
        self.units: list[UnitInfo] = []
        self.reservations: list[ReservationInfo] = []
        self.queued: list[QueuedWorkload] = []
        self.running: list[RunningWorkload] = []
        self.maintenance: list[MaintenanceInfo] = []

    def added_to(self, whole: Snapshot) -> Snapshot:
        choose = self.choose
        self._hardware()
        self._reserve()
        self._run()
        for number in range(choose.between(2, 9)):
            self.queued.append(self._waiting(self.pool * 10_000 + number))
        self._stop_some()
        self._earmark_some()
        kind, owner = (PoolKind.STATIC, choose.of(TEAMS)) if choose.rarely(8) else (PoolKind.DYNAMIC, None)
        if owner is not None and not choose.rarely(3):
            self.queued = [q if q.reservation else replace(q, team=owner) for q in self.queued]
        use = [DecayedUseInfo(team, self.pool, float(choose.between(0, 10**9))) for team in TEAMS]
        return replace(
            whole,
            pools=(*whole.pools, PoolInfo(self.pool, f"pool-{self.pool}", kind, owner, self._policy())),
            hosts=(*whole.hosts, *self.hosts),
            units=(*whole.units, *self.units),
            quotas=(*whole.quotas, *self._quotas()),
            decayed_use=(*whole.decayed_use, *use),
            queued=(*whole.queued, *self.queued),
            running=(*whole.running, *self.running),
            reservations=(*whole.reservations, *self.reservations),
            maintenance=(*whole.maintenance, *self.maintenance),
        )

    def _policy(self) -> PoolPolicy:
        choose = self.choose
        return PoolPolicy(
            notice_seconds=choose.one_of(30, 0, 120),
            grace_seconds=choose.one_of(30, 10),
            minimum_runtime_seconds=choose.one_of(300, 0, 3600),
            spare_slots=choose.one_of(0, 0, 0, 0, SLOTS_PER_GPU, 3 * SLOTS_PER_GPU),
            max_slots_per_user=choose.one_of(None, None, None, 6 * SLOTS_PER_GPU),
            max_slots_per_workload=choose.one_of(None, None, None, 8 * SLOTS_PER_GPU),
        )

    # -- hardware

    def _hardware(self) -> None:
        choose = self.choose
        for number in range(choose.one_of(2, 3, 4, 1, 5)):
            host = self.pool * 10 + number
            open_ = not choose.rarely(12)
            labels = {("rack", choose.one_of("r1", "r2"))} if choose.rarely(2) else set()
            labels |= {("site", "north")} if choose.rarely(3) else set()
            self.hosts.append(
                HostInfo(
                    host,
                    f"host-{host}",
                    self.pool,
                    frozenset(labels),
                    cpu_milli=choose.one_of(0, 32_000, 64_000),
                    memory_mib=choose.one_of(0, 256_000),
                    schedulable=open_,
                    closed_code="" if open_ else choose.one_of(ReasonCode.HOST_CLOSED, ReasonCode.HOST_FULL),
                    home_storage=choose.one_of(None, 1, 2),
                )
            )
            self._gpus(host)
            if choose.rarely(10):
                start = NOW + choose.one_of(2 * HOUR, -HOUR, 60)
                self.maintenance.append(MaintenanceInfo(host, start, start + 4 * HOUR))

    def _gpus(self, host: int) -> None:
        choose = self.choose
        model, count, island = choose.of(MODELS), choose.one_of(4, 8, 2, 1), choose.one_of(4, 8, 2, 0)
        cut = choose.one_of("", "", "", SMALL, LARGE, SHARE)
        whole = choose.between(0, count) if cut else count
        for number in range(count):
            gpu, profile = host * 100 + number, "" if number < whole else cut
            for part in range(CUTS[profile]):
                self.units.append(
                    UnitInfo(
                        gpu * 10 + part,
                        host,
                        gpu,
                        model,
                        profile,
                        slots=SLOTS_PER_GPU // CUTS[profile],
                        memory_mib=MEMORY[model] // (1 if profile == SHARE else CUTS[profile]),
                        compute_capability=CAPABILITY[model],
                        nvlink_group=number // island if island and not profile else None,
                    )
                )
        if choose.rarely(8):
            sick = choose.of(self.units)
            self.units = [replace(u, healthy=u.healthy and u.gpu != sick.gpu) for u in self.units]

    # -- requests

    def _ask(self) -> Ask:
        """Return a request, mostly for hardware that the pool has."""
        choose = self.choose
        like = choose.of(self.units)
        per_host = Counter(u.host for u in self.units if (u.model, u.profile) == (like.model, like.profile))
        most = 9 if choose.rarely(20) else max(per_host.values())
        others = tuple(m for m in MODELS if m != like.model)
        return Ask(
            units=choose.of([n for n in (1, 2, 4, 8, 3, 9) if n <= most]),
            hosts=choose.one_of(1, 1, 1, 1, min(2, len(per_host)), len(per_host)),
            models=choose.one_of((), (like.model,), (like.model, *others), (others[0], like.model)),
            profile="" if choose.rarely(12) else like.profile,
            min_memory_mib=41_000 if choose.rarely(12) else 0,
            min_compute_capability=89 if choose.rarely(12) else 0,
            nvlink=choose.rarely(10),
            labels=frozenset({("rack", "r1")}) if choose.rarely(10) else NO_LABELS,
            labels_preferred=frozenset({("rack", "r2")}) if choose.rarely(10) else NO_LABELS,
            spread=choose.rarely(10),
            cpu_milli=choose.one_of(0, 8_000),
            memory_mib=choose.one_of(0, 64_000),
        )

    # -- reservations

    def _reserve(self) -> None:
        choose = self.choose
        free = [u.id for u in self.units if not u.profile]
        for number in range(choose.one_of(0, 0, 1, 2, 3)):
            start = NOW + choose.one_of(-HOUR, 0, 30, 60, 20 * 60, 6 * HOUR)
            ask = replace(self._ask(), profile="", nvlink=choose.rarely(6))
            reservation = ReservationInfo(
                self.pool * 100 + number,
                team=choose.of(TEAMS),
                project=1,
                pool=self.pool,
                ask=ask,
                start=start,
                end=start + choose.one_of(2 * HOUR, 9 * HOUR),
                may_exceed_guarantee=choose.rarely(4),
            )
            if reservation.start <= NOW and free and choose.rarely(2):
                chosen, free = free[: min(len(free), ask.total_units)], free[ask.total_units :]
                reservation = replace(reservation, units=tuple(sorted(chosen)))
            self.reservations.append(reservation)

    # -- running work

    def _run(self) -> None:
        """Add running work, sometimes gangs. Units of a reservation run its own work only."""
        choose = self.choose
        inside = {u: r for r in self.reservations for u in r.units}
        remaining = list(self.units)
        for _ in range(choose.one_of(0, 3, 6, 10)):
            if not remaining:
                break
            first = choose.of(remaining)
            same = self._units_like(first, [u for u in remaining if inside.get(u.id) == inside.get(first.id)])
            chosen = same[: choose.one_of(1, 2, 4, 8)]
            unavailable = {u.id for u in chosen} | {
                u.id for u in remaining if u.profile == SHARE and u.gpu == first.gpu
            }
            remaining = [u for u in remaining if u.id not in unavailable]
            self.running.append(self._one_running(chosen, inside.get(first.id)))

    def _units_like(self, first: UnitInfo, units: list[UnitInfo]) -> list[UnitInfo]:
        """Return units of the same model and profile as ``first``, mostly of the same host.

        Shares are always of the same GPU.
        """
        same = [u for u in units if (u.profile, u.model) == (first.profile, first.model)]
        if first.profile == SHARE:
            return [u for u in same if u.gpu == first.gpu]
        is_gang = self.choose.rarely(4)
        return same if is_gang else [u for u in same if u.host == first.host]

    def _one_running(self, units: list[UnitInfo], inside: ReservationInfo | None) -> RunningWorkload:
        choose = self.choose
        started = NOW - choose.one_of(2 * HOUR, 20 * HOUR, 60, 0)
        until = max(started + 1, NOW + choose.one_of(5 * HOUR, 600, 60 * HOUR, -60))
        until = until if inside is None else min(until, inside.end)
        preemptible = not choose.rarely(3)
        return RunningWorkload(
            id=self.pool * 10_000 + 500 + len(self.running),
            team=inside.team if inside else choose.of(TEAMS),
            project=inside.project if inside else 1,
            user=choose.between(1, 4),
            pool=self.pool,
            units=tuple(sorted(u.id for u in units)),
            started=started,
            until=until,
            predicted_end=max(started + 1, min(until, NOW + choose.one_of(HOUR, -60, 600, 10 * HOUR))),
            priority=choose.one_of(Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.CRITICAL),
            preemptible=preemptible,
            checkpoint_at=choose.one_of(None, max(started, NOW - 300), max(started, NOW - HOUR)),
            reservation=inside.id if inside else None,
            evictions=choose.one_of(0, 0, 1, 3),
            cpu_milli=choose.one_of(0, 4_000, 12_000),
            memory_mib=choose.one_of(0, 10_000),
        )

    def _stop_some(self) -> None:
        """Mark some running work as stopping.

        It stops for a waiting workload, a workload that no longer exists, a reservation, or nobody.
        """
        choose = self.choose
        for number, running in enumerate(self.running):
            if not choose.rarely(7):
                continue
            workload, reservation = None, None
            if choose.rarely(2):
                workload = choose.of(
                    [*(q.id for q in self.queued if q.reservation == running.reservation), 88_888]
                )
            elif self.reservations and choose.rarely(2):
                reservation = choose.of(self.reservations).id
            self.running[number] = replace(
                running,
                stopping=True,
                stop_by=choose.one_of(NOW + 40, NOW - 5, None),
                evicted_for_workload=workload,
                evicted_for_reservation=reservation,
            )

    # -- waiting work

    # Not split: the function chooses the fields of the workload one after the other.
    def _waiting(self, workload: int) -> QueuedWorkload:
        choose = self.choose
        inside = choose.of(self.reservations) if self.reservations and choose.rarely(6) else None
        ask = replace(self._ask(), profile="", labels=NO_LABELS) if inside else self._ask()
        limit = 30 * 24 * HOUR if choose.rarely(30) else choose.one_of(HOUR, 600, 8 * HOUR, 48 * HOUR)
        preemptible = choose.rarely(2)
        gate = choose.one_of(ReasonCode.BUDGET_CLOSED, ReasonCode.DEPENDENCY) if choose.rarely(20) else ""
        return QueuedWorkload(
            id=workload,
            team=inside.team if inside and not choose.rarely(8) else choose.of(TEAMS),
            project=inside.project if inside else 1,
            user=choose.between(1, 4),
            pool=self.pool,
            ask=ask,
            submitted=NOW - choose.one_of(60, HOUR, 30 * HOUR, 3 * HOUR, 10),
            max_runtime_seconds=limit,
            predicted_seconds=choose.one_of(limit, max(60, limit // 10), min(limit, 600)),
            priority=choose.one_of(Priority.NORMAL, Priority.LOW, Priority.HIGH, Priority.CRITICAL),
            preemptible=preemptible,
            may_borrow=preemptible and not choose.rarely(6),
            reservation=inside.id if inside else (66_666 if choose.rarely(40) else None),
            not_before=NOW + 60 if choose.rarely(30) else 0,
            evicted_by=choose.of([None, None, *(r.id for r in self.running)]),
            gate=gate,
            gate_numbers=(("spent", 5),) if gate else (),
            avoids=choose.one_of((), (), (self.pool * 10,), (self.pool * 10, self.pool * 10 + 1)),
            avoids_until=choose.one_of(NOW + HOUR, NOW, 0),
            checkpoint_storage=choose.one_of(None, None, 1, 2),
        )

    def _earmark_some(self) -> None:
        """Earmark units for some workloads: free units, or units that their stopping victims still hold."""
        choose = self.choose
        free = self._units_of_nobody()
        for number, queued in enumerate(self.queued):
            victims = [r for r in self.running if r.stopping and r.evicted_for_workload == queued.id]
            if not victims and not (free and queued.reservation is None and choose.rarely(8)):
                continue
            chosen, free = self._choose_free(free, queued.ask.profile)
            units = {u.id for u in chosen} | {u for r in victims for u in r.units}
            teams = {r.team for r in victims}
            self.queued[number] = replace(
                queued,
                earmarked_units=tuple(sorted(units)),
                room_made_by_own_team=teams == {queued.team} if teams else None,
            )

    def _units_of_nobody(self) -> list[UnitInfo]:
        held = {u for r in self.running for u in r.units} | {u for r in self.reservations for u in r.units}
        return [u for u in self.units if u.id not in held]

    def _choose_free(self, free: list[UnitInfo], profile: str) -> tuple[list[UnitInfo], list[UnitInfo]]:
        """Return some free units of a profile, and the remaining free units.

        If shares of a GPU are chosen, the other shares of this GPU are in neither result.
        """
        chosen = [u for u in free if u.profile == profile][: self.choose.one_of(0, 1, 2, 4)]
        shared = {u.gpu for u in chosen if u.profile == SHARE}
        return chosen, [u for u in free if u not in chosen and u.gpu not in shared]

    # -- quotas

    def _quotas(self) -> list[QuotaInfo]:
        """Return quotas below, equal to or above the units that a team holds. Some teams have no quota."""
        choose = self.choose
        size = {u.id: u for u in self.units}
        quotas = []
        for model in sorted({u.model for u in self.units}):
            remaining = sum(u.slots for u in self.units if u.model == model)
            for team in TEAMS:
                held = sum(
                    size[u].slots
                    for r in self.running
                    if r.team == team
                    for u in r.units
                    if size[u].model == model
                )
                whole = -(-held // SLOTS_PER_GPU) + choose.one_of(0, 1, 4, -2, 8, -8)
                guaranteed = min(remaining, max(0, whole) * SLOTS_PER_GPU)
                if choose.rarely(8):
                    continue
                remaining -= guaranteed
                limit = choose.one_of(None, None, None, 0, 2 * SLOTS_PER_GPU)
                if choose.rarely(12):  # the team has used up its GPU-hours of the period
                    quotas.append(
                        QuotaInfo(team, self.pool, model, 0, choose.one_of(limit, 0), NOW + HOUR, 500)
                    )
                else:
                    quotas.append(QuotaInfo(team, self.pool, model, guaranteed, limit))
        return quotas
