"""The pure heart of the agent: what it does for any frame, however late, doubled, lost or out of order."""

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


def new(generation: int, units: list[str]) -> str:
    return ""


def do(
    desired: Desired,
    held: list[RunStatus],
    *,
    now: float = 100.0,
    refusal: Callable[[int, list[str]], str] = new,
) -> list[object]:
    return list(plan_actions(desired, held, refusal=refusal, known_units=UNITS, heard_at=now))


def test_an_unknown_run_is_started_once_even_when_named_twice() -> None:
    wanted = job("x", units=["GPU-a"])
    assert do(frame(wanted, wanted), []) == [StartRun(wanted)]


def test_starts_happen_in_the_order_of_generations() -> None:
    early, late = job("x", generation=3, units=["GPU-a"]), job("x", generation=4, units=["GPU-b"])
    assert do(frame(late, early), []) == [StartRun(early), StartRun(late)]


@pytest.mark.parametrize("state", ["starting", "running", "stopping", "ended"])
def test_a_doubled_start_changes_nothing(state: str) -> None:
    wanted = job("x")
    assert do(frame(wanted), [RunStatus(wanted.run, state)]) == []


def test_a_stale_generation_is_refused_with_its_reason() -> None:
    wanted = job("x", units=["GPU-a"])
    [action] = do(
        frame(wanted), [], refusal=lambda generation, units: f"generation {generation} was used before"
    )
    assert isinstance(action, RefuseRun)
    assert (action.outcome, action.why) == ("start_failed", "refused: generation 1 was used before")


def test_a_stop_of_a_run_that_never_began_is_answered_as_its_end() -> None:
    wanted = job("", verb="stop", code="time_limit")
    assert do(frame(wanted), []) == [RefuseRun(wanted, "time_limit", "stopped before it began")]


def test_a_notice_is_given_once_and_withdrawn_when_the_server_wants_it_to_run_on() -> None:
    wanted = job("x", verb="notice", code="evicted_for_guarantee")
    assert do(frame(wanted), [RunStatus(wanted.run, "running")]) == [SendNotice(wanted)]
    assert do(frame(wanted), [RunStatus(wanted.run, "running", noticed=True)]) == []
    back = dataclasses.replace(wanted, verb="start")
    assert do(frame(back), [RunStatus(wanted.run, "running", noticed=True)]) == [WithdrawNotice(wanted.run)]


def test_a_run_that_may_last_longer_or_shorter_than_its_shim_was_told_is_limited_anew() -> None:
    wanted = dataclasses.replace(job("x"), max_runtime_seconds=7200)
    assert do(frame(wanted), [RunStatus(wanted.run, "running", max_runtime_seconds=3600)]) == [
        ChangeTimeLimit(wanted.run, 7200)
    ]
    assert do(frame(wanted), [RunStatus(wanted.run, "running", max_runtime_seconds=7200)]) == []
    assert do(frame(wanted), [RunStatus(wanted.run, "running")]) == [], (
        "started by an agent that did not note it"
    )
    endless = dataclasses.replace(wanted, max_runtime_seconds=0)
    assert do(frame(endless), [RunStatus(wanted.run, "running", max_runtime_seconds=7200)]) == [
        ChangeTimeLimit(wanted.run, 0)
    ]
    assert (
        do(frame(endless), [RunStatus(wanted.run, "stopping", stop_ordered=True, max_runtime_seconds=7200)])
        == []
    )
    stopped = dataclasses.replace(wanted, verb="stop", code="cancelled")
    assert isinstance(
        do(frame(stopped), [RunStatus(wanted.run, "running", max_runtime_seconds=3600)])[0], StopRun
    )


def test_nothing_takes_a_stop_back() -> None:
    for verb in ("start", "notice", "stop"):
        assert do(frame(job("x", verb=verb)), [RunStatus("run-1", "stopping", stop_ordered=True)]) == []


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
def test_a_stop_carries_what_the_run_ends_as(code: str, outcome: str) -> None:
    [action] = do(frame(job("x", verb="stop", code=code)), [RunStatus("run-1", "running")])
    assert action == StopRun("run-1", outcome, 5.0)


def test_an_unnamed_run_stops_after_two_polls_and_not_before() -> None:
    for since, expected in ((None, []), (95.0, []), (90.0, [StopRun("run-1", "cancelled", 30.0)])):
        assert do(frame(), [RunStatus("run-1", "running", undesired_since=since)]) == expected


def test_an_unnamed_run_has_the_grace_of_its_own_pool() -> None:
    held = RunStatus("run-1", "running", undesired_since=90.0, grace_seconds=4.0)
    assert do(frame(), [held]) == [StopRun("run-1", "cancelled", 4.0)]


def test_an_ended_run_is_kept_until_the_server_has_heard_of_it() -> None:
    assert do(frame(), [RunStatus("run-1", "ended", undesired_since=0.0)]) == []
    assert do(frame(), [RunStatus("run-1", "ended", undesired_since=0.0, reported_ended=True)]) == [
        ForgetRun("run-1")
    ]
    assert do(frame(job("x")), [RunStatus("run-1", "ended", undesired_since=0.0, reported_ended=True)]) == []


class Host:
    """A host in miniature: does at once what ``plan_actions`` says, and remembers what it ever started."""

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
        for action in do(desired, list(self.held.values()), now=self.now, refusal=self.refusal):
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


@pytest.mark.parametrize("seed", range(60))
def test_any_mess_of_frames_ends_where_the_last_frames_say_and_starts_nothing_twice(seed: int) -> None:
    chance = random.Random(seed)
    truth: list[Desired] = [frame()]
    wanted: dict[str, RunWanted] = {}
    for generation in range(1, 13):
        unit = chance.choice(sorted(UNITS))
        for name, run in list(wanted.items()):
            if run.unit_uuids == [unit]:
                if run.verb == "stop":
                    del wanted[name]
                else:
                    wanted[name] = dataclasses.replace(run, verb="stop", code="evicted_for_guarantee")
        truth.append(frame(*wanted.values()))
        wanted = {name: run for name, run in wanted.items() if run.unit_uuids != [unit]}
        wanted[f"run-{generation}"] = job("x", generation=generation, units=[unit])
        truth.append(frame(*wanted.values()))

    host = Host()
    mess = [sent for sent in truth for _ in range(chance.choice((0, 1, 1, 2, 3)))]
    for place in range(len(mess)):
        other = min(len(mess) - 1, place + chance.choice((0, 0, 1, 4)))
        mess[place], mess[other] = mess[other], mess[place]
    for sent in mess:
        host.hear(sent)
    for _ in range(30):  # the network calms down: polls bring the newest state
        host.hear(truth[-1])

    assert len(host.started) == len(set(host.started)), "nothing is started twice"
    final = {run.run for run in truth[-1].runs}
    alive = {name for name, held in host.held.items() if held.state == "running"}
    assert alive <= final, "nothing runs that should not"
    for name in final:
        assert name in host.held, "what is wanted is there, or is reported as refused"
    per_unit = [run.unit_uuids[0] for run in truth[-1].runs if run.run in alive]
    assert len(per_unit) == len(set(per_unit))
