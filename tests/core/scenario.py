"""Read a scenario file: a small pool with its workloads, the expected plan, and the texts that users see.

Times are relative to now ("2h", "-30m", "1d"). GPUs of a host are named "HOST/0", slices "HOST/0.0". Amounts
are in GPUs. If a file has a field that this module does not read, the test fails. ``texts`` has the sentence
of ``portal/wording`` for each answer of the plan. Regenerate the texts with this command, then read them:

    GPUPOOL_WRITE_WORDS=1 ./run test tests/core/test_scenarios.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from scheduler.core.model.plan import Plan
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

NOW = 1_773_828_000  # Wednesday 18 March 2026, 10:00 UTC
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
SLICES = {"1g.10gb": 7, "3g.40gb": 2, "share-1/4": 4}
MEMORY = {"H100-80GB": 81_920, "A100-40GB": 40_960}
FOLDER = Path(__file__).parent / "scenarios"


def seconds(text: str) -> int:
    """Return a time such as "90s", "-2h" or "1d" in seconds."""
    number, unit = re.fullmatch(r"(-?\d+)([smhd])", text).groups()  # type: ignore[union-attr]
    return int(number) * SECONDS[unit]


def at(text: str) -> int:
    return NOW + seconds(text)


class Scenario:
    """The snapshot of one scenario file and the expected plan."""

    def __init__(self, path: Path) -> None:
        data = json.loads(path.read_text())
        self.rule: str = data.pop("rule")
        self.expected: dict[str, Any] = data.pop("expect")
        self.texts: dict[str, str] = data.pop("texts", {})
        self.unit_id: dict[str, int] = {}
        self.host_id: dict[str, int] = {}
        self.teams = {name: number for number, name in enumerate(data["teams"], start=1)}
        self.snapshot = self._snapshot(data)
        assert not data, f"{path.name}: nothing reads {sorted(data)}"
        self.unit_name = {number: name for name, number in self.unit_id.items()}

    def _pool(self, data: dict[str, Any]) -> PoolInfo:
        owner = data.pop("static_for", None)
        policy = dict(data.pop("policy", {}).items())
        for name in ("spare", "most_per_user", "most_per_workload"):
            if name in policy:
                field = {"spare": "spare_slots"}.get(name, name.replace("most_per_", "max_slots_per_"))
                policy[field] = policy.pop(name) * SLOTS_PER_GPU
        if "minimum_runtime" in policy:
            policy["minimum_runtime_seconds"] = seconds(policy.pop("minimum_runtime"))
        kind = PoolKind.STATIC if owner else PoolKind.DYNAMIC
        return PoolInfo(1, "pool", kind, self.teams.get(owner) if owner else None, PoolPolicy(**policy))

    def _snapshot(self, data: dict[str, Any]) -> Snapshot:
        pool = self._pool(data)
        hosts: list[HostInfo] = []
        units: list[UnitInfo] = []
        for number, (name, row) in enumerate(data.pop("hosts").items(), start=1):
            hosts.append(self._host(number, name, row))
            self.host_id[name] = number
            units += self._units(number, name, row)
            assert not row, f"host {name}: nothing reads {sorted(row)}"
        models = sorted({unit.model for unit in units})
        teams: list[TeamInfo] = []
        quotas: list[QuotaInfo] = []
        decayed_use: list[DecayedUseInfo] = []
        for name, row in data.pop("teams").items():
            teams.append(TeamInfo(self.teams[name], name, row.pop("weight", 1)))
            quotas += self._quotas(name, row, models)
            used = row.pop("used", 0) * 3600.0 * SLOTS_PER_GPU
            decayed_use.append(DecayedUseInfo(self.teams[name], 1, used))
            assert not row, f"team {name}: nothing reads {sorted(row)}"
        return Snapshot(
            epoch=1,
            pools=(pool,),
            hosts=tuple(hosts),
            units=tuple(units),
            teams=tuple(teams),
            quotas=tuple(quotas),
            decayed_use=tuple(decayed_use),
            queued=tuple(self._queued(int(key), row) for key, row in data.pop("queued", {}).items()),
            running=tuple(self._running(int(key), row) for key, row in data.pop("running", {}).items()),
            reservations=tuple(
                self._reservation(int(key), row) for key, row in data.pop("reservations", {}).items()
            ),
            maintenance=tuple(
                self._maintenance(name, row) for name, row in data.pop("maintenance", {}).items()
            ),
        )

    def _host(self, number: int, name: str, row: dict[str, Any]) -> HostInfo:
        closed_code = row.pop("closed", None)
        return HostInfo(
            number,
            name,
            1,
            frozenset(row.pop("labels", {}).items()),
            cpu_milli=row.pop("cpus", 0) * 1000,
            memory_mib=row.pop("memory_gib", 0) * 1024,
            schedulable=closed_code is None,
            closed_code=closed_code or "",
            home_storage=row.pop("homes", None),
        )

    def _units(self, host: int, name: str, row: dict[str, Any]) -> list[UnitInfo]:
        """Return the units of a host from "gpus" ("8xH100-80GB") and "profiles" ({"0": "1g.10gb"})."""
        count, model = row.pop("gpus").split("x", 1)
        profiles, unhealthy = row.pop("profiles", {}), row.pop("unhealthy", [])
        units = []
        for gpu in range(int(count)):
            profile = profiles.get(str(gpu), "")
            parts = SLICES.get(profile, 1)
            for part in range(parts):
                unit = host * 1000 + gpu * 10 + part
                self.unit_id[f"{name}/{gpu}" + (f".{part}" if profile else "")] = unit
                units.append(
                    UnitInfo(
                        unit,
                        host,
                        host * 100 + gpu,
                        model,
                        profile,
                        SLOTS_PER_GPU // parts,
                        MEMORY[model] // parts,
                        90 if model.startswith("H") else 80,
                        gpu // 4 if not profile else None,
                        gpu not in unhealthy,
                    )
                )
        return units

    def _quotas(self, name: str, row: dict[str, Any], models: list[str]) -> list[QuotaInfo]:
        """Return the quotas of a team.

        ``"guaranteed": 4`` applies to every model of the pool. ``"guaranteed": {"H100-80GB": 4}`` applies
        only to the named models. Without ``borrows``, there is no limit on borrowing.
        """
        guaranteed = row.pop("guaranteed", {})
        if isinstance(guaranteed, int):
            guaranteed = dict.fromkeys(models, guaranteed)
        limit = row.pop("borrows", None)
        slots = None if limit is None else limit * SLOTS_PER_GPU
        until, hours = row.pop("hours_used_up_until", None), row.pop("gpu_hours", 0)
        used_up = None if until is None else at(until)
        return [
            QuotaInfo(
                self.teams[name],
                1,
                model,
                n * SLOTS_PER_GPU if used_up is None else 0,
                slots,
                used_up,
                hours,
                guaranteed_after_reset=n * SLOTS_PER_GPU,
                borrow_limit_after_reset=slots,
            )
            for model, n in guaranteed.items()
        ]

    def _ask(self, row: dict[str, Any]) -> Ask:
        return Ask(
            units=row.pop("gpus", 1),
            hosts=row.pop("hosts", 1),
            models=tuple(row.pop("models", ())),
            profile=row.pop("profile", ""),
            min_memory_mib=row.pop("min_memory_gib", 0) * 1024,
            min_compute_capability=row.pop("min_compute_capability", 0),
            nvlink=row.pop("nvlink", False),
            labels=frozenset(row.pop("labels", {}).items()),
            labels_preferred=frozenset(row.pop("prefers", {}).items()),
            spread=row.pop("spread", False),
            cpu_milli=row.pop("cpus", 0) * 1000,
            memory_mib=row.pop("memory_gib", 0) * 1024,
        )

    def _queued(self, key: int, row: dict[str, Any]) -> QueuedWorkload:
        ask, limit = self._ask(row), seconds(row.pop("limit", "4h"))
        preemptible = row.pop("preemptible", False)
        gate = row.pop("gate", "")
        queued = QueuedWorkload(
            key,
            self.teams[row.pop("team")],
            row.pop("project", 1),
            row.pop("user", key),
            1,
            ask,
            submitted=NOW - seconds(row.pop("waited", "1m")),
            max_runtime_seconds=limit,
            predicted_seconds=seconds(row.pop("predicted", f"{limit}s")),
            priority=Priority[row.pop("priority", "normal").upper()],
            preemptible=preemptible,
            may_borrow=row.pop("may_borrow", preemptible),
            reservation=row.pop("reservation", None),
            not_before=at(row.pop("not_before", "0s")),
            evicted_by=row.pop("evicted_by", None),
            gate=gate,
            gate_numbers=tuple(sorted(row.pop("gate_numbers", {}).items())),
            earmarked_units=tuple(sorted(self.unit_id[u] for u in row.pop("earmarked", []))),
            room_made_by_own_team=row.pop("room_made_by_own_team", None),
            avoids=tuple(sorted(self.host_id[name] for name in row.pop("avoids", []))),
            avoids_until=at(row.pop("avoids_until", "0s")),
            checkpoint_storage=row.pop("homes", None),
        )
        assert not row, f"workload {key}: nothing reads {sorted(row)}"
        return queued

    def _running(self, key: int, row: dict[str, Any]) -> RunningWorkload:
        until = row.pop("until", "10h")
        checkpoint, stop_by = row.pop("checkpoint", None), row.pop("stop_by", None)
        running = RunningWorkload(
            key,
            self.teams[row.pop("team")],
            row.pop("project", 1),
            row.pop("user", key),
            1,
            tuple(sorted(self.unit_id[name] for name in row.pop("on"))),
            started=at(row.pop("started", "-2h")),
            until=at(until),
            predicted_end=at(row.pop("predicted_end", until)),
            priority=Priority[row.pop("priority", "normal").upper()],
            preemptible=row.pop("preemptible", False),
            checkpoint_at=None if checkpoint is None else at(checkpoint),
            reservation=row.pop("reservation", None),
            stopping=stop_by is not None,
            stop_by=None if stop_by is None else at(stop_by),
            evicted_for_workload=row.pop("evicted_for_workload", None),
            evicted_for_reservation=row.pop("evicted_for_reservation", None),
            evictions=row.pop("evictions", 0),
            cpu_milli=row.pop("cpus", 0) * 1000,
        )
        assert not row, f"workload {key}: nothing reads {sorted(row)}"
        return running

    def _reservation(self, key: int, row: dict[str, Any]) -> ReservationInfo:
        reservation = ReservationInfo(
            key,
            self.teams[row.pop("team")],
            row.pop("project", 1),
            1,
            self._ask(row),
            at(row.pop("start")),
            at(row.pop("end")),
            tuple(sorted(self.unit_id[name] for name in row.pop("bound", []))),
        )
        assert not row, f"reservation {key}: nothing reads {sorted(row)}"
        return reservation

    def _maintenance(self, host: str, row: dict[str, Any]) -> MaintenanceInfo:
        window = MaintenanceInfo(self.host_id[host], at(row.pop("start")), at(row.pop("end")))
        assert not row, f"maintenance of {host}: nothing reads {sorted(row)}"
        return window

    # -- the plan in the form of the file

    def relevant_part(self, planned: Plan) -> dict[str, Any]:
        """Return the plan in the form of the file, reduced to the details that the file specifies."""
        answers: dict[str, Any] = {
            "placed": {
                str(p.workload): {
                    "on": self._names(p.units),
                    "code": str(p.code),
                    "borrowed": p.borrowed_slots / SLOTS_PER_GPU,
                    "until": _distance(p.until),
                }
                for p in planned.placements
            },
            "evicted": {
                str(e.workload): {
                    "for": e.for_workload,
                    "for_reservation": e.for_reservation,
                    "code": str(e.code),
                    "stop": _distance(e.stop_at),
                }
                for e in planned.evictions
            },
            "refused": {
                str(r.workload): {
                    "code": str(r.code),
                    "numbers": dict(r.numbers),
                    "place": r.position,
                    "start": None if r.expected_start is None else _distance(r.expected_start),
                    "behind": list(r.blockers),
                    "held": self._names(r.held_units),
                }
                for r in planned.refusals
            },
            "unbound": {
                str(u.reservation): {"code": str(u.code), "numbers": dict(u.numbers)} for u in planned.unbound
            },
            "bound": {str(b.reservation): {"on": self._names(b.units)} for b in planned.bindings},
        }
        return {part: _only(answers[part], self.expected.get(part, {})) for part in answers}

    def _names(self, units: tuple[int, ...]) -> list[str]:
        return [self.unit_name[unit] for unit in units]


def _distance(time: int) -> str:
    """Return the time from now in the largest unit that gives a whole number: "2h", "90s"."""
    distance = time - NOW
    unit = next(u for u in "dhms" if distance % SECONDS[u] == 0)
    return f"{distance // SECONDS[unit]}{unit}"


def _only(answers: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Return every answer, reduced to the details and numbers that ``expected`` lists for it."""
    reduced = {}
    for key, answer in answers.items():
        details = expected.get(key, {})
        reduced[key] = {name: answer[name] for name in details}
        if "numbers" in details:
            reduced[key]["numbers"] = {name: answer["numbers"].get(name) for name in details["numbers"]}
    return reduced
