"""What to do now: a pure function of what the server wants and what this host has.

Nothing here remembers a message. Each time, everything wanted is compared with everything there is, so a lost, doubled, late
or reordered frame changes nothing that the next one does not put right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agent.protocol import Desired, RunWanted
from agent.runs import gangs

VERBS = ("start", "notice", "stop")
KINDS = ("job", "notebook")
# Codes of a stop that are outcomes in their own right; any other code (an eviction, say) ends as cancelled.
STOP_OUTCOMES = ("cancelled", "time_limit", "idle", "drained", "gpu_error")
MAX_NUMBER = 1 << 40  # seconds, and as much of anything else that is counted
_ID_PATTERN = re.compile(r"[A-Za-z0-9-]{1,64}")
_OWNER_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}")
_VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True)
class RunStatus:
    """One run as this host has it. ``state``: starting, running, stopping or ended."""

    run: str
    state: str
    noticed: bool = False
    stop_ordered: bool = False
    reported_ended: bool = False  # a frame that said so went out, and its whole log
    unnamed_since: float | None = None  # CLOCK_BOOTTIME of the first frame in a row that did not name it
    grace_seconds: float = 30.0  # of its pool when it was started
    max_runtime_seconds: int | None = None  # as it was last told its shim; 0: none; None: not known


@dataclass(frozen=True)
class StartRun:
    wanted: RunWanted


@dataclass(frozen=True)
class RefuseRun:
    """Never start it; report it as ended with ``outcome``, so that the server can close it."""

    wanted: RunWanted
    outcome: str
    why: str


@dataclass(frozen=True)
class SendNotice:
    wanted: RunWanted


@dataclass(frozen=True)
class WithdrawNotice:
    """The notice no longer holds."""

    run: str


@dataclass(frozen=True)
class ChangeTimeLimit:
    """It may run longer, or less long, than its shim was told. ``seconds`` from its beginning; 0: as long as it likes."""

    run: str
    seconds: int


@dataclass(frozen=True)
class StopRun:
    """``whatever``: it ends as ``outcome`` also when it saved its work or had to be killed. ``why``: in words. ``host_full``: it
    goes because the host's disk ran low."""

    run: str
    outcome: str
    grace_seconds: float
    whatever: bool = False
    why: str = ""
    host_full: bool = False


@dataclass(frozen=True)
class ForgetRun:
    """It ended, the server knows: its folder may go."""

    run: str


Action = StartRun | RefuseRun | SendNotice | WithdrawNotice | ChangeTimeLimit | StopRun | ForgetRun


def plan_actions(
    desired: Desired,
    held: Iterable[RunStatus],
    *,
    refusal: Callable[[int, list[str]], str],
    known_units: frozenset[str],
    heard_at: float,
) -> list[Action]:
    """The actions that bring this host nearer to ``desired``; none when it is there.

    ``refusal(generation, units)`` says why a claim is not new ('' when it is). ``heard_at``: CLOCK_BOOTTIME of the last frame that
    was not older than one before it. A run that the server does not name is stopped only when another frame says so two polls
    after the first: one stale frame stops nobody, whatever silence follows it.
    """
    actions: list[Action] = []
    here = {run.run: run for run in held}
    named = {wanted.run for wanted in desired.runs}
    for wanted in sorted(desired.runs, key=lambda wanted: wanted.generation):
        run = here.get(wanted.run)
        action = (
            _action_for_new_run(wanted, refusal, known_units)
            if run is None
            else _action_for_known_run(wanted, run)
        )
        if action is not None:
            actions.append(action)
            here.setdefault(
                wanted.run, RunStatus(wanted.run, "starting")
            )  # a frame that names a run twice starts it once
    patience = 2 * desired.poll_seconds
    for run in here.values():
        if run.run in named or run.unnamed_since is None or heard_at - run.unnamed_since < patience:
            continue
        if run.state != "ended":
            if not run.stop_ordered:
                actions.append(StopRun(run.run, "cancelled", run.grace_seconds))
        elif run.reported_ended:
            actions.append(ForgetRun(run.run))
    return actions


def _action_for_new_run(
    wanted: RunWanted, refusal: Callable[[int, list[str]], str], known: frozenset[str]
) -> Action | None:
    """For a run this host has never had."""
    wrong = validation_error(wanted, known)
    if wrong:
        return RefuseRun(wanted, "start_failed", wrong) if _ID_PATTERN.fullmatch(wanted.run) else None
    if wanted.verb == "stop":
        return RefuseRun(wanted, outcome_of_stop(wanted.code), "stopped before it began")
    stale = refusal(wanted.generation, wanted.unit_uuids)
    if stale:
        return RefuseRun(wanted, "start_failed", f"refused: {stale}")
    return StartRun(wanted)


def _action_for_known_run(wanted: RunWanted, run: RunStatus) -> Action | None:
    """For a run this host has."""
    if run.state == "ended" or run.stop_ordered:
        return None
    if wanted.verb == "stop":
        return StopRun(wanted.run, outcome_of_stop(wanted.code), max(0.0, wanted.grace_seconds))
    if (
        run.max_runtime_seconds not in (None, wanted.max_runtime_seconds)
        and 0 <= wanted.max_runtime_seconds < MAX_NUMBER
    ):
        return ChangeTimeLimit(wanted.run, wanted.max_runtime_seconds)
    if wanted.verb == "notice" and not run.noticed:
        return SendNotice(wanted)
    if wanted.verb == "start" and run.noticed:
        return WithdrawNotice(wanted.run)
    return None


def outcome_of_stop(code: str) -> str:
    """What a run ends as that goes when it is told to stop for ``code``."""
    return code if code in STOP_OUTCOMES else "cancelled"


def validation_error(wanted: RunWanted, known_units: frozenset[str]) -> str:
    """What is wrong with a wanted run: field, value and what is allowed. '' when nothing is."""
    for field, pattern, allowed in (
        ("run", _ID_PATTERN, "letters, digits and -"),
        ("workload", _ID_PATTERN, "letters, digits and -"),
        ("owner", _OWNER_PATTERN, "letters, digits and . _ @ + -, not first a . or -"),
    ):
        value = getattr(wanted, field)
        if not pattern.fullmatch(value):
            return f"{field}: {value[:60]!r} is not made of {allowed}"
    if wanted.verb not in VERBS:
        return f"verb: {wanted.verb[:60]!r} is not one of {', '.join(VERBS)}"
    if wanted.kind not in KINDS:
        return f"kind: {wanted.kind[:60]!r} is not one of {', '.join(KINDS)}"
    if wanted.verb != "stop" and wanted.kind == "job" and not wanted.command.strip():
        return "command: empty; a job needs one"
    if wanted.verb != "stop" and wanted.kind == "notebook" and not wanted.secret:
        return "secret: empty; a notebook needs one"
    for field in ("cpu_milli", "memory_mib", "max_runtime_seconds"):
        if not 0 <= getattr(wanted, field) < MAX_NUMBER:
            return f"{field}: {getattr(wanted, field)} is not a whole number from 0 on"
    strange = sorted(set(wanted.unit_uuids) - known_units)
    if strange:
        return f"unit_uuids: {strange[0][:60]!r} is not on this host"
    for name in wanted.environment:
        if not _VARIABLE_PATTERN.fullmatch(name):
            return f"environment: {name[:60]!r} is not a name of letters, digits and _"
    return gangs.gang_error(wanted.gang)
