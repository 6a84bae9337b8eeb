"""Generate the worked examples of docs/scheduling.md from scenario files, with the numbers of the planner.

A block of the page begins with one of these comments:

- ``<!-- example: NAME -->``: the block shows the scenario in the file NAME of ``scenarios/``.
- ``<!-- rules -->``: the block lists the rule of each file.
- ``<!-- promises -->``: the block lists all checks of the verifier.

A block ends with ``<!-- end -->``. Regenerate the blocks with this command:

    GPUPOOL_WRITE_DOCS=1 ./run test tests/core/test_worked_examples.py
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.plan_verifier import PROMISES
from scheduler.core.model.plan import Plan
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import Ask, PoolKind, PoolPolicy, Priority, QueuedWorkload, RunningWorkload
from scheduler.core.planner import plan
from tests.core.scenario import FOLDER, NOW, Scenario

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scheduling.md"
BLOCK = re.compile(r"<!-- (?P<block>example: (?P<name>\w+)|rules|promises) -->\n.*?<!-- end -->", re.DOTALL)


def with_new_blocks(text: str) -> str:
    """Return the page with every block regenerated."""
    return BLOCK.sub(lambda match: f"<!-- {match['block']} -->\n{_block(match)}\n<!-- end -->", text)


def _block(match: re.Match[str]) -> str:
    if match["name"]:
        return Example(FOLDER / f"{match['name']}.json").table()
    if match["block"] == "promises":
        return "\n".join(f"- {promise}" for promise in PROMISES)
    rows = [f"| {Scenario(path).rule} | `{path.stem}` |" for path in sorted(FOLDER.glob("*.json"))]
    return "\n".join(["| rule | scenario |", "|---|---|", *rows])


class Example:
    """One scenario as a table of its workloads and reservations, with decisions and displayed texts."""

    def __init__(self, path: Path) -> None:
        self.scenario = Scenario(path)
        self.file = path.name
        self.planned: Plan = plan(self.scenario.snapshot, NOW)
        self.team = {number: name for name, number in self.scenario.teams.items()}

    def table(self) -> str:
        """Return the example in Markdown: rule, pool, and one row for each workload and reservation."""
        snapshot = self.scenario.snapshot
        rows = [self._row(str(r.id), self._running(r), self._about_running(r)) for r in snapshot.running]
        rows += [self._row(f"reservation {r.id}", *self._reservation(r.id)) for r in snapshot.reservations]
        rows += [self._row(str(q.id), self._queued(q), self._about_queued(q)) for q in snapshot.queued]
        return "\n".join(
            [
                f"> {self.scenario.rule}",
                "",
                self._pool(),
                "",
                "| | situation | decision | message to people |",
                "|---|---|---|---|",
                *rows,
                "",
                f"(`tests/core/scenarios/{self.file}`)",
            ]
        )

    def _row(self, subject: str, description: str, decision: str) -> str:
        return f"| {subject} | {description} | {decision} | {self.scenario.texts.get(subject, '')} |"

    # -- the pool

    def _pool(self) -> str:
        snapshot = self.scenario.snapshot
        hosts = []
        for host in snapshot.hosts:
            gpus = {u.gpu: u.model for u in snapshot.units if u.host == host.id}
            labels = "".join(f", {name} {value}" for name, value in sorted(host.labels))
            hosts.append(f"{host.name} ({len(gpus)} x {next(iter(gpus.values()))}{labels})")
        sentences = [f"Hosts: {', '.join(hosts)}.", *self._quotas(), *self._used(), *self._rules()]
        return " ".join(sentences)

    def _quotas(self) -> list[str]:
        snapshot = self.scenario.snapshot
        if snapshot.pools[0].kind is PoolKind.STATIC:
            return [f"A static pool of {self.team[snapshot.pools[0].team or 0]}."]
        several = len({quota.model for quota in snapshot.quotas}) > 1
        amounts = []
        for quota in snapshot.quotas:
            model = f" {quota.model}" if several else ""
            limit = "" if quota.borrow_limit is None else f" (may borrow {_number(quota.borrow_limit)} more)"
            amounts.append(f"{self.team[quota.team]} {_number(quota.guaranteed)}{model}{limit}")
        return [f"Guaranteed: {', '.join(amounts)}."]

    def _used(self) -> list[str]:
        weight = {team.id: team.weight for team in self.scenario.snapshot.teams}
        used = [
            f"{self.team[use.team]} {use.slot_seconds / SLOTS_PER_GPU / 3600:g} GPU hours "
            f"with weight {weight[use.team]}"
            for use in self.scenario.snapshot.decayed_use
        ]
        return (
            [f"Recent use: {', '.join(used)}."]
            if any(u.slot_seconds for u in self.scenario.snapshot.decayed_use)
            else []
        )

    def _rules(self) -> list[str]:
        """Return the pool's settings that differ from the defaults, and its maintenance windows."""
        policy, default = self.scenario.snapshot.pools[0].policy, PoolPolicy()
        sentences = []
        if policy.spare_slots:
            sentences.append(f"{_gpus(policy.spare_slots)} kept free for critical work.")
        if policy.minimum_runtime_seconds != default.minimum_runtime_seconds:
            sentences.append(f"Minimum runtime: {_time(policy.minimum_runtime_seconds)}.")
        name = {host.id: host.name for host in self.scenario.snapshot.hosts}
        for window in self.scenario.snapshot.maintenance:
            length = _time(window.end - window.start)
            sentences.append(
                f"Maintenance of {name[window.host]} in {_time(window.start - NOW)}, for {length}."
            )
        return sentences

    # -- workloads and reservations

    def _running(self, row: RunningWorkload) -> str:
        words = [f"{self.team[row.team]} runs on {self._names(row.units)}"]
        words += [] if row.reservation is None else [f"inside reservation {row.reservation}"]
        words += [row.priority.name.lower()] if row.priority is not Priority.NORMAL else []
        words += ["preemptible"] if row.preemptible else []
        words += [f"for {_time(NOW - row.started)} so far"]
        words += [f"saved {_time(NOW - row.checkpoint_at)} ago"] if row.checkpoint_at else []
        words += (
            [f"evicted {'once' if row.evictions == 1 else f'{row.evictions} times'} before"]
            if row.evictions
            else []
        )
        words += ["is stopping"] if row.stopping else [f"{_time(row.until - NOW)} more at most"]
        return ", ".join(words)

    def _queued(self, row: QueuedWorkload) -> str:
        words = [f"{self.team[row.team]} requests {_asked(row.ask)}"]
        words += [] if row.reservation is None else [f"inside reservation {row.reservation}"]
        words += [row.priority.name.lower()] if row.priority is not Priority.NORMAL else []
        words += ["preemptible"] if row.preemptible else []
        words += [f"for {_time(row.max_runtime_seconds)} at most"]
        if row.predicted_seconds != row.max_runtime_seconds:
            words.append(f"probably {_time(row.predicted_seconds)}")
        words += [f"waiting for {_time(NOW - row.submitted)}"] if row.submitted < NOW else []
        return ", ".join(words)

    def _reservation(self, reservation: int) -> tuple[str, str]:
        row = next(r for r in self.scenario.snapshot.reservations if r.id == reservation)
        begins = f"from {_time(row.start - NOW)} from now" if row.start > NOW else "from now"
        description = (
            f"{self.team[row.team]} has reserved {_asked(row.ask)} {begins} for {_time(row.end - row.start)}"
        )
        bound = next((b.units for b in self.planned.bindings if b.reservation == reservation), row.units)
        if bound:
            return description, f"has {self._names(bound)}"
        return description, "has begun without units" if row.start <= NOW else "is kept feasible"

    # -- decisions

    def _about_running(self, row: RunningWorkload) -> str:
        eviction = next((e for e in self.planned.evictions if e.workload == row.id), None)
        if eviction is None:
            return "ends" if row.stopping else "continues"
        beneficiary = (
            f"workload {eviction.for_workload}"
            if eviction.for_workload
            else f"reservation {eviction.for_reservation}"
        )
        lost = dict(eviction.numbers).get("lost")
        words = [f"is evicted for {beneficiary}", f"stops in {_time(eviction.stop_at - NOW)}"]
        words += (
            [f"{lost / 3600 / SLOTS_PER_GPU:.2g} GPU hours lost"] if isinstance(lost, int) and lost else []
        )
        return ", ".join(words)

    def _about_queued(self, row: QueuedWorkload) -> str:
        for placement in self.planned.placements:
            if placement.workload == row.id:
                borrowed = (
                    f", {_number(placement.borrowed_slots)} of them borrowed"
                    if placement.borrowed_slots
                    else ""
                )
                return f"starts on {self._names(placement.units)}{borrowed}"
        refusal = next(r for r in self.planned.refusals if r.workload == row.id)
        words = ["waits" if refusal.position is None else f"waits at position {refusal.position}"]
        if refusal.blockers:
            words.append(f"behind {', '.join(map(str, refusal.blockers))}")
        if refusal.expected_start is not None:
            words.append(f"expected to start in {_time(refusal.expected_start - NOW)}")
        words += [f"{self._names(refusal.held_units)} held for it"] if refusal.held_units else []
        return ", ".join(words)

    def _names(self, units: tuple[int, ...]) -> str:
        """Return names of units such as ``one/0-3 two/5``, with consecutive GPUs and slices as ranges."""
        by_stem: dict[str, list[int]] = {}
        for unit in units:
            stem, number = re.fullmatch(r"(.*[/.])(\d+)", self.scenario.unit_name[unit]).groups()  # type: ignore[union-attr]
            by_stem.setdefault(stem, []).append(int(number))
        return " ".join(stem + _ranges(sorted(numbers)) for stem, numbers in by_stem.items())


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _asked(ask: Ask) -> str:
    kind = f"{ask.profile} slice" if ask.profile else "GPU"
    kind += "s" if ask.units > 1 else ""
    words = [f"{ask.hosts} hosts x {ask.units} {kind}" if ask.hosts > 1 else f"{ask.units} {kind}"]
    words += [f"of {' or else '.join(ask.models)}"] if ask.models else []
    words += [f"with at least {ask.min_memory_mib // 1024} GiB"] if ask.min_memory_mib else []
    words += (
        [f"of compute capability {ask.min_compute_capability / 10:g}"] if ask.min_compute_capability else []
    )
    words += ["in one NVLink island"] if ask.nvlink else []
    words += [f"with {name} {value}" for name, value in sorted(ask.labels)]
    return " ".join(words)


def _number(slots: int) -> str:
    return f"{slots / SLOTS_PER_GPU:g}"


def _gpus(slots: int) -> str:
    return f"{_number(slots)} GPU{'' if slots == SLOTS_PER_GPU else 's'}"


def _time(seconds: int) -> str:
    """Return a duration in the largest unit that gives a whole number: ``90 s``, ``5 min``, ``2 h``."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
