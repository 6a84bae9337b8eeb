"""Test that the agent plans the right actions even if frames are late, duplicated, lost or out of order."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from agent.protocol import VERSION, Desired, RunWanted
from agent.runs.reconcile import (
    ChangeTimeLimit,
    ForgetRun,
    RefuseRun,
    RunStatus,
    SendNotice,
    StartRun,
    StopRun,
    WithdrawNotice,
    plan_actions,
)
from tests.agent.conftest import job

UNITS = frozenset({"GPU-a", "GPU-b"})


def frame(*runs: RunWanted) -> Desired:
    return Desired(version=VERSION, host="h1", lease_seconds=30.0, runs=list(runs), poll_seconds=5.0)


def accept(generation: int, units: list[str]) -> str:
    return ""


def plan(
    desired: Desired,
    held: list[RunStatus],
    *,
    now: float = 100.0,
    refusal: Callable[[int, list[str]], str] = accept,
) -> list[object]:
    return list(plan_actions(desired, held, refusal=refusal, known_units=UNITS, heard_at=now))


def test_an_unknown_run_is_started_once_even_if_listed_twice() -> None:
    wanted = job("x", units=["GPU-a"])
    assert plan(frame(wanted, wanted), []) == [StartRun(wanted)]


def test_runs_start_in_the_order_of_their_generations() -> None:
    early, late = job("x", generation=3, units=["GPU-a"]), job("x", generation=4, units=["GPU-b"])
    assert plan(frame(late, early), []) == [StartRun(early), StartRun(late)]


@pytest.mark.parametrize("state", ["starting", "running", "stopping", "ended"])
def test_a_repeated_start_has_no_effect(state: str) -> None:
    wanted = job("x")
    assert plan(frame(wanted), [RunStatus(wanted.run, state)]) == []


def test_a_stale_generation_is_rejected_with_its_reason() -> None:
    wanted = job("x", units=["GPU-a"])
    [action] = plan(
        frame(wanted), [], refusal=lambda generation, units: f"generation {generation} was used before"
    )
    assert isinstance(action, RefuseRun)
    assert (action.outcome, action.why) == ("start_failed", "refused: generation 1 was used before")


def test_a_stop_of_an_unknown_run_is_reported_as_its_end() -> None:
    wanted = job("", verb="stop", code="time_limit")
    assert plan(frame(wanted), []) == [RefuseRun(wanted, "time_limit", "stopped before it began")]


def test_a_notice_is_sent_once_and_withdrawn_if_the_run_may_continue() -> None:
    wanted = job("x", verb="notice", code="evicted_for_guarantee")
    assert plan(frame(wanted), [RunStatus(wanted.run, "running")]) == [SendNotice(wanted)]
    assert plan(frame(wanted), [RunStatus(wanted.run, "running", noticed=True)]) == []
    back = dataclasses.replace(wanted, verb="start")
    assert plan(frame(back), [RunStatus(wanted.run, "running", noticed=True)]) == [WithdrawNotice(wanted.run)]


def test_a_changed_time_limit_is_sent_to_the_shim() -> None:
    wanted = dataclasses.replace(job("x"), max_runtime_seconds=7200)
    assert plan(frame(wanted), [RunStatus(wanted.run, "running", max_runtime_seconds=3600)]) == [
        ChangeTimeLimit(wanted.run, 7200)
    ]
    assert plan(frame(wanted), [RunStatus(wanted.run, "running", max_runtime_seconds=7200)]) == []
    assert plan(frame(wanted), [RunStatus(wanted.run, "running")]) == [], (
        "an earlier agent did not store the limit"
    )
    endless = dataclasses.replace(wanted, max_runtime_seconds=0)
    assert plan(frame(endless), [RunStatus(wanted.run, "running", max_runtime_seconds=7200)]) == [
        ChangeTimeLimit(wanted.run, 0)
    ]
    assert (
        plan(frame(endless), [RunStatus(wanted.run, "stopping", stop_ordered=True, max_runtime_seconds=7200)])
        == []
    )
    stopped = dataclasses.replace(wanted, verb="stop", code="cancelled")
    assert isinstance(
        plan(frame(stopped), [RunStatus(wanted.run, "running", max_runtime_seconds=3600)])[0], StopRun
    )


def test_a_stop_is_never_withdrawn() -> None:
    for verb in ("start", "notice", "stop"):
        assert plan(frame(job("x", verb=verb)), [RunStatus("run-1", "stopping", stop_ordered=True)]) == []


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("cancelled", "cancelled"),
        ("idle", "idle"),
        ("drained", "drained"),
        ("evicted_for_priority", "cancelled"),
        ("", "cancelled"),
    ],
)
def test_a_stop_contains_the_outcome_of_the_run(code: str, outcome: str) -> None:
    [action] = plan(frame(job("x", verb="stop", code=code)), [RunStatus("run-1", "running")])
    assert action == StopRun("run-1", outcome, 5.0)


def test_an_undesired_run_stops_after_two_polls_and_not_before() -> None:
    for since, expected in ((None, []), (95.0, []), (90.0, [StopRun("run-1", "cancelled", 30.0)])):
        assert plan(frame(), [RunStatus("run-1", "running", undesired_since=since)]) == expected


def test_an_undesired_run_gets_the_grace_period_of_its_pool() -> None:
    held = RunStatus("run-1", "running", undesired_since=90.0, grace_seconds=4.0)
    assert plan(frame(), [held]) == [StopRun("run-1", "cancelled", 4.0)]


def test_an_ended_run_is_kept_until_its_end_is_reported() -> None:
    assert plan(frame(), [RunStatus("run-1", "ended", undesired_since=0.0)]) == []
    assert plan(frame(), [RunStatus("run-1", "ended", undesired_since=0.0, reported_ended=True)]) == [
        ForgetRun("run-1")
    ]
    assert (
        plan(frame(job("x")), [RunStatus("run-1", "ended", undesired_since=0.0, reported_ended=True)]) == []
    )


class ActionHost:
    """A simulated host that performs each action of `plan_actions` at once and records every started run."""

    def __init__(self) -> None:
        self.held: dict[str, RunStatus] = {}
        self.started: list[str] = []
        self.highest: dict[str, int] = {}
        self.used: set[int] = set()
        self.now = 0.0

    def refusal(self, generation: int, units: list[str]) -> str:
        if generation in self.used or any(generation <= self.highest.get(unit, 0) for unit in units):
            return "stale"
        return ""

    def hear(self, desired: Desired) -> None:
        self.now += 1.0
        named = {wanted.run for wanted in desired.runs}
        for name, held in self.held.items():
            since = (
                None
                if name in named
                else held.undesired_since
                if held.undesired_since is not None
                else self.now
            )
            self.held[name] = dataclasses.replace(
                held, undesired_since=since, reported_ended=held.state == "ended"
            )
        for action in plan(desired, list(self.held.values()), now=self.now, refusal=self.refusal):
            self.obey(action)

    def obey(self, action: object) -> None:
        match action:
            case StartRun(wanted) | RefuseRun(wanted):
                self.used.add(wanted.generation)
                for unit in wanted.unit_uuids:
                    self.highest[unit] = max(wanted.generation, self.highest.get(unit, 0))
                if isinstance(action, StartRun):
                    self.started.append(wanted.run)
                self.held[wanted.run] = RunStatus(
                    wanted.run, "running" if isinstance(action, StartRun) else "ended"
                )
            case StopRun(run):
                self.held[run] = dataclasses.replace(self.held[run], state="ended", stop_ordered=True)
            case SendNotice(wanted):
                self.held[wanted.run] = dataclasses.replace(self.held[wanted.run], noticed=True)
            case WithdrawNotice(run):
                self.held[run] = dataclasses.replace(self.held[run], noticed=False)
            case ChangeTimeLimit(run, seconds):
                self.held[run] = dataclasses.replace(self.held[run], max_runtime_seconds=seconds)
            case ForgetRun(run):
                del self.held[run]


def _random_frames(rng: random.Random) -> list[Desired]:
    """Return the frames of a server that repeatedly stops the run of a unit and starts the next run on it."""
    sent_frames: list[Desired] = [frame()]
    wanted: dict[str, RunWanted] = {}
    for generation in range(1, 13):
        unit = rng.choice(sorted(UNITS))
        for name, run in list(wanted.items()):
            if run.unit_uuids == [unit]:
                if run.verb == "stop":
                    del wanted[name]
                else:
                    wanted[name] = dataclasses.replace(run, verb="stop", code="evicted_for_guarantee")
        sent_frames.append(frame(*wanted.values()))
        wanted = {name: run for name, run in wanted.items() if run.unit_uuids != [unit]}
        wanted[f"run-{generation}"] = job("x", generation=generation, units=[unit])
        sent_frames.append(frame(*wanted.values()))
    return sent_frames


def _as_received(rng: random.Random, sent_frames: list[Desired]) -> list[Desired]:
    """Return the frames as a bad network delivers them: lost, repeated and out of order."""
    received = [sent for sent in sent_frames for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    for place in range(len(received)):
        other = min(len(received) - 1, place + rng.choice((0, 0, 1, 4)))
        received[place], received[other] = received[other], received[place]
    return received


@pytest.mark.parametrize("seed", range(60))
def test_shuffled_frames_converge_to_the_last_state_without_double_starts(seed: int) -> None:
    rng = random.Random(seed)
    sent_frames = _random_frames(rng)
    host = ActionHost()
    for sent in _as_received(rng, sent_frames):
        host.hear(sent)
    for _ in range(30):  # the network works again, and polls transfer the newest state
        host.hear(sent_frames[-1])

    assert len(host.started) == len(set(host.started)), "no run is started twice"
    final = {run.run for run in sent_frames[-1].runs}
    alive = {name for name, held in host.held.items() if held.state == "running"}
    assert alive <= final, "no undesired run is running"
    for name in final:
        assert name in host.held, "a desired run exists or is reported as refused"
    per_unit = [run.unit_uuids[0] for run in sent_frames[-1].runs if run.run in alive]
    assert len(per_unit) == len(set(per_unit))
