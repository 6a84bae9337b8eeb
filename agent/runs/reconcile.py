"""Plans the actions that bring this host to its desired state.

The plan is a pure function of the desired state and the observed state. It does not depend on earlier frames
(messages of the server). Each call compares the whole desired state with all runs of the host. Therefore the
next frame corrects the effect of a lost, duplicated, late or reordered frame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agent.protocol import Desired, RunWanted
from agent.runs import gangs

VERBS = ("start", "notice", "stop")
KINDS = ("job", "notebook")
# Stop codes that are also outcomes. A run that is stopped with any other code, such as an eviction, ends as
# cancelled.
STOP_OUTCOMES = ("cancelled", "time_limit", "idle", "drained", "gpu_error")
MAX_NUMBER = 1 << 40  # largest valid number of seconds, millicores or MiB in an order
_ID_PATTERN = re.compile(r"[A-Za-z0-9-]{1,64}")
_OWNER_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}")
_VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True)
class RunStatus:
    """The status of one run of this host. ``state``: starting, running, stopping or ended."""

    run: str
    state: str
    noticed: bool = False
    stop_ordered: bool = False
    reported_ended: bool = False  # True: the end of the run and its whole log were sent to the server
    # CLOCK_BOOTTIME of the first frame without this run; None: the last frame listed the run.
    undesired_since: float | None = None
    grace_seconds: float = 30.0  # time from TERM to KILL, as the server set it at the start of the run
    max_runtime_seconds: int | None = None  # last limit given to the run's shim; 0: no limit; None: unknown


@dataclass(frozen=True)
class StartRun:
    wanted: RunWanted


@dataclass(frozen=True)
class RefuseRun:
    """Do not start the run. Report it as ended with ``outcome``, so that the server can close it."""

    wanted: RunWanted
    outcome: str
    why: str


@dataclass(frozen=True)
class SendNotice:
    wanted: RunWanted


@dataclass(frozen=True)
class WithdrawNotice:
    """Withdraw the notice of a run."""

    run: str


@dataclass(frozen=True)
class ChangeTimeLimit:
    """Change the time limit of a run. ``seconds`` count from the run's start; 0 means no limit."""

    run: str
    seconds: int


@dataclass(frozen=True)
class StopRun:
    """Stop a run.

    - ``whatever``: if True, the stopped run ends as ``outcome``. If False, a killed run ends as
      ``killed_at_grace``, a run that saved a checkpoint after its notice ends as ``checkpointed``, and any
      other run ends as ``outcome``.
    - ``why``: a sentence for the run's user.
    - ``host_full``: True if the run is stopped because the host's disk runs low.
    """

    run: str
    outcome: str
    grace_seconds: float
    whatever: bool = False
    why: str = ""
    host_full: bool = False


@dataclass(frozen=True)
class ForgetRun:
    """Remove the folder of an ended run. The server has recorded the end of the run."""

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
    """Return the actions that bring this host to ``desired``; [] if nothing is to do.

    - ``held``: the status of each run of this host.
    - ``refusal(generation, units)``: returns the reason why a run with this generation may not start on these
      units; '' if it may start. The generation is the number of a run on a host.
    - ``known_units``: the uuids of the units of this host.
    - ``heard_at``: the CLOCK_BOOTTIME of the last frame that did not arrive out of order.

    A run that the server does not list is stopped only after at least two polls. So a single stale frame
    never stops a run.
    """
    actions: list[Action] = []
    runs = {run.run: run for run in held}
    named = {wanted.run for wanted in desired.runs}
    for wanted in sorted(desired.runs, key=lambda wanted: wanted.generation):
        run = runs.get(wanted.run)
        action = (
            _action_for_new_run(wanted, refusal, known_units)
            if run is None
            else _action_for_known_run(wanted, run)
        )
        if action is not None:
            actions.append(action)
            # If a frame lists a run twice, start the run only once.
            runs.setdefault(wanted.run, RunStatus(wanted.run, "starting"))
    patience = 2 * desired.poll_seconds
    for run in runs.values():
        if run.run in named or run.undesired_since is None or heard_at - run.undesired_since < patience:
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
    """Return the action for a run that this host does not have yet; None if its id is invalid."""
    problem = validation_error(wanted, known)
    if problem:
        return RefuseRun(wanted, "start_failed", problem) if _ID_PATTERN.fullmatch(wanted.run) else None
    if wanted.verb == "stop":
        return RefuseRun(wanted, outcome_of_stop(wanted.code), "stopped before it began")
    stale = refusal(wanted.generation, wanted.unit_uuids)
    if stale:
        return RefuseRun(wanted, "start_failed", f"refused: {stale}")
    return StartRun(wanted)


def _action_for_known_run(wanted: RunWanted, run: RunStatus) -> Action | None:
    """Return the action for a run that this host already has; None if nothing is to do."""
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
    """Return the outcome of a run that ends after a stop with ``code``."""
    return code if code in STOP_OUTCOMES else "cancelled"


def validation_error(wanted: RunWanted, known_units: frozenset[str]) -> str:
    """Return a sentence about the first invalid field and its allowed values; '' if the order is valid."""
    for field, pattern, allowed in (
        ("run", _ID_PATTERN, "letters, digits and -"),
        ("workload", _ID_PATTERN, "letters, digits and -"),
        ("owner", _OWNER_PATTERN, "letters, digits and . _ @ + -, not first a . or -"),
    ):
        value = getattr(wanted, field)
        if not pattern.fullmatch(value):
            return f"{field}: {value[:60]!r} is not made of {allowed}"
    error = _verb_error(wanted)
    if error:
        return error
    for field in ("cpu_milli", "memory_mib", "max_runtime_seconds"):
        if not 0 <= getattr(wanted, field) < MAX_NUMBER:
            return f"{field}: {getattr(wanted, field)} is not a whole number from 0 on"
    unknown = sorted(set(wanted.unit_uuids) - known_units)
    if unknown:
        return f"unit_uuids: {unknown[0][:60]!r} is not on this host"
    for name in wanted.environment:
        if not _VARIABLE_PATTERN.fullmatch(name):
            return f"environment: {name[:60]!r} is not a name of letters, digits and _"
    return gangs.gang_error(wanted.gang)


def _verb_error(wanted: RunWanted) -> str:
    """Return a sentence about an invalid verb, kind, command or secret; '' if all of them are valid."""
    if wanted.verb not in VERBS:
        return f"verb: {wanted.verb[:60]!r} is not one of {', '.join(VERBS)}"
    if wanted.kind not in KINDS:
        return f"kind: {wanted.kind[:60]!r} is not one of {', '.join(KINDS)}"
    if wanted.verb == "stop":
        return ""
    if wanted.kind == "job" and not wanted.command.strip():
        return "command: empty; a job needs one"
    if wanted.kind == "notebook" and not wanted.secret:
        return "secret: empty; a notebook needs one"
    return ""
