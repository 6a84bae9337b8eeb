"""What is to become of a workload, and what is said of its end: pure, so that a simulation can hold to the same rules."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: it would double this process's memory
if TYPE_CHECKING:
    from typing import Any

SIGKILL_EXIT_CODE = 137  # the exit code of what was ended by KILL


def start_blocker(order: dict[str, Any], now: float, lease_until: float) -> str:
    """Why a workload is not to begin: "stop", "lease_lost"; "" where it may."""
    if order.get("stop"):
        return "stop"
    return "lease_lost" if now >= lease_until else ""


def outcome_of_unstarted(cause: str, stop_outcome: str) -> str:
    """The outcome of a workload that did not begin, for ``cause``."""
    return {"stop": stop_outcome, "lease_lost": "lease_lost"}.get(cause, "start_failed")


def accepts_stop_order(order: dict[str, Any], cause: str, ended: bool) -> bool:
    """Whether a stop is to be carried out: the first one, and not where the workload has ended by itself."""
    return bool(order.get("stop")) and not cause and not ended


def time_limit_deadline(began: float, seconds: float) -> float | None:
    """When a workload's time is over that may run for ``seconds``; 0: never."""
    return began + seconds if seconds else None


def stop_cause(now: float, ends_at: float | None, lease_until: float) -> str:
    """Why a workload is to be stopped now: "time_limit", "lease_lost"; "" where it may go on."""
    if ends_at is not None and now >= ends_at:
        return "time_limit"
    return "lease_lost" if now >= lease_until else ""


def outcome_of_exit(
    code: int, cause: str, stop: tuple[str, bool], *, killed: bool, saved: bool, out_of_memory: bool
) -> str:
    """Of a workload that has ended with ``code``. ``stop``: the outcome that whoever stopped it asked for, and whether it is that
    whatever happened; ``killed``: it had to be; ``saved``: it acknowledged a checkpoint after its notice."""
    if cause in ("lease_lost", "time_limit"):
        return cause
    if cause == "stop":
        stop_outcome, whatever = stop
        if whatever:
            return stop_outcome
        if killed:
            return "killed_at_grace"
        return "checkpointed" if saved else stop_outcome
    if saved:
        return "checkpointed"
    if code == 0:
        return "finished"
    return "out_of_memory" if out_of_memory else "failed"


def ran_out_of_memory(code: int, own: int | None, before: int | None, after: int | None) -> bool:
    """Its own group's count of processes killed for memory tells it for sure, also where a child was killed and the workload only
    failed of it. Without a group (None) the host's count must have grown and the workload itself been killed."""
    if own is not None:
        return own > 0
    return code == SIGKILL_EXIT_CODE and before is not None and after is not None and after > before
