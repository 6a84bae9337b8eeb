"""Decides when a workload is stopped and with which outcome it ends.

The functions are pure, because the simulation of whole sites uses them too.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not imported from typing, because the import would double this process's memory
if TYPE_CHECKING:
    from typing import Any

SIGKILL_EXIT_CODE = 137  # exit code of a process that was killed by SIGKILL


def start_blocker(order: dict[str, Any], now: float, lease_until: float) -> str:
    """Return the cause why a workload must not start: "stop" or "lease_lost"; "" if it may start."""
    if order.get("stop"):
        return "stop"
    return "lease_lost" if now >= lease_until else ""


def outcome_of_unstarted(cause: str, stop_outcome: str) -> str:
    """Return the outcome of a workload that did not start because of ``cause``."""
    return {"stop": stop_outcome, "lease_lost": "lease_lost"}.get(cause, "start_failed")


def accepts_stop_order(order: dict[str, Any], cause: str, ended: bool) -> bool:
    """Return True if ``order`` contains a stop that must be carried out.

    ``cause``: why the workload is already being stopped, or "". Only the first cause counts. ``ended``: True
    if the main process has ended; then a stop is ignored.
    """
    return bool(order.get("stop")) and not cause and not ended


def time_limit_deadline(began: float, seconds: float) -> float | None:
    """Return the time at which a workload reaches its time limit; None if ``seconds`` is 0 (no limit)."""
    return began + seconds if seconds else None


def stop_cause(now: float, ends_at: float | None, lease_until: float) -> str:
    """Return the cause why a workload must stop now: "time_limit" or "lease_lost"; "" if it may continue.

    ``ends_at``: the time of the time limit, or None. ``lease_until``: the end of the lease.
    """
    if ends_at is not None and now >= ends_at:
        return "time_limit"
    return "lease_lost" if now >= lease_until else ""


def outcome_of_exit(
    code: int, cause: str, stop: tuple[str, bool], *, killed: bool, saved: bool, out_of_memory: bool
) -> str:
    """Return the outcome of a workload that has ended with ``code``.

    - ``cause``: why the workload was stopped; "" if it ended by itself.
    - ``stop``: the outcome in the stop order, and True if this outcome applies in any case.
    - ``killed``: True if the workload was killed after its grace period.
    - ``saved``: True if it acknowledged a checkpoint after its notice.
    """
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
    """Return True if the workload ended because it ran out of memory.

    ``own``: the number of out-of-memory kills in the workload's control group; None without a control group.
    With a control group, one kill suffices, because the parent of a killed child process often fails too.

    Without a control group, two conditions must hold. The main process must have ended by SIGKILL, and the
    number of out-of-memory kills on the whole host must have grown from ``before`` to ``after``.
    """
    if own is not None:
        return own > 0
    return code == SIGKILL_EXIT_CODE and before is not None and after is not None and after > before
