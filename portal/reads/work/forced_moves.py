"""Read why a workload had to leave its host: the hardware event, or the operator's reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from scheduler.core.reasons import ReasonCode
from scheduler.models import Command, GpuStateChange, HostStateChange, Workload
from telemetry.models import HealthEvent, HealthRule

FORCED_MOVE_CODES = (ReasonCode.DRAINED, ReasonCode.GPU_ERROR)
HOST_REMOVING_ACTIONS = (HealthRule.Action.CORDON, HealthRule.Action.DRAIN, HealthRule.Action.QUARANTINE_GPU)


@dataclass(frozen=True)
class ForcedMove:
    """An eviction of a run because its host or GPU was taken out of service.

    ``code`` is the reason code, and ``numbers`` are the values in the reason's sentence. They always include
    ``host``. After a hardware event, they include ``event``, ``meaning`` and ``gpu`` (index of the failed
    GPU, if known). Otherwise they include ``words``, the operator's reason, if the operator gave one.
    """

    code: str
    numbers: dict[str, Any] = field(default_factory=dict)


def forced_moves_of_runs(runs: Iterable[int]) -> dict[int, ForcedMove]:
    """Return the forced moves by run id. Takes one query if there are none, otherwise at most five."""
    commands = list(
        Command.objects.filter(
            run__in=list(runs), code__in=FORCED_MOVE_CODES, verb__in=(Command.Verb.NOTICE, Command.Verb.STOP)
        )
        .select_related("host")
        .order_by("run_id", "pk")
    )
    return forced_moves_of_commands(commands)


@dataclass(frozen=True)
class WorkloadHistoryEntry:
    """One line of a workload's history.

    ``kind`` is the kind of the engine's Decision, or "moved" for a forced move.
    """

    at: datetime
    kind: str
    code: str
    numbers: dict[str, Any]


def workload_history(workload: Workload, most: int) -> list[WorkloadHistoryEntry]:
    """Return a workload's history, newest first: decisions of the engine, of health rules, of operators."""
    rows = workload.decisions.order_by("-at", "-pk")[:most]
    found = [WorkloadHistoryEntry(row.at, row.kind, row.code, row.numbers) for row in rows]
    commands = list(
        Command.objects.filter(
            run__workload=workload,
            code__in=FORCED_MOVE_CODES,
            verb__in=(Command.Verb.NOTICE, Command.Verb.STOP),
        )
        .select_related("host")
        .order_by("run_id", "pk")
    )
    moved = forced_moves_of_commands(commands)
    first = {command.run_id: command for command in reversed(commands)}
    found += [
        WorkloadHistoryEntry(first[run].created_at, "moved", move.code, move.numbers)
        for run, move in moved.items()
    ]
    return sorted(found, key=lambda one: one.at, reverse=True)[:most]


def forced_moves_of_commands(commands: Iterable[Command]) -> dict[int, ForcedMove]:
    """Return the forced move of each run, by run id. The caller has loaded the hosts of the commands.

    The first command of a run counts. Its cause is the row with the same host and timestamp: a health event,
    otherwise a state change of the host, otherwise a state change of one of the host's GPUs.
    """
    first: dict[int, Command] = {}
    for command in commands:
        first.setdefault(command.run_id, command)
    if not first:
        return {}
    hosts, moments = {c.host_id for c in first.values()}, {c.created_at for c in first.values()}
    events = HealthEvent.objects.filter(
        host__in=hosts, handled_at__in=moments, action_taken__in=HOST_REMOVING_ACTIONS
    )
    by_event = {(e.host_id, e.handled_at): e for e in events.select_related("gpu").order_by("-at", "-pk")}
    meanings = _event_meanings({event.code for event in by_event.values()})
    changes = HostStateChange.objects.filter(host__in=hosts, at__in=moments).exclude(reason="")
    words = {(host, at): reason for host, at, reason in changes.values_list("host_id", "at", "reason")}
    if all(_key(command) in by_event for command in first.values()):
        return {run: _forced_move(c, by_event[_key(c)], meanings, "") for run, c in first.items()}
    taken_out = GpuStateChange.objects.filter(gpu__host__in=hosts, at__in=moments).exclude(reason="")
    for host, at, reason in taken_out.values_list("gpu__host_id", "at", "reason"):
        words.setdefault((host, at), reason)
    return {
        run: _forced_move(c, by_event.get(key), meanings, words.get(key, ""))
        for run, c in first.items()
        if (key := _key(c))
    }


def _event_meanings(codes: set[str]) -> dict[str, str]:
    """Return the meanings of hardware events by code. A code without a health rule is absent."""
    if not codes:
        return {}
    return dict(HealthRule.objects.filter(code__in=codes).values_list("code", "meaning"))


def _key(command: Command) -> tuple[int, Any]:
    return command.host_id, command.created_at


def _forced_move(
    command: Command, event: HealthEvent | None, meanings: dict[str, str], words: str
) -> ForcedMove:
    numbers: dict[str, Any] = {"host": command.host.name}
    if event is None:
        return ForcedMove(command.code, numbers | ({"words": words} if words else {}))
    numbers |= {"event": event.code, "meaning": meanings.get(event.code, "")}
    return ForcedMove(command.code, numbers | ({"gpu": event.gpu.index} if event.gpu else {}))
