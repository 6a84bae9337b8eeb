"""Test the rules of a run's start, stop and outcome, which the shim and the simulation share."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from agent.host.state import StateFolder
from agent.shim import lifecycle_rules

CANCELLED = ("cancelled", False)


@pytest.mark.parametrize(
    ("code", "cause", "more", "outcome"),
    [
        (0, "", {}, "finished"),
        (3, "", {}, "failed"),
        (3, "", {"out_of_memory": True}, "out_of_memory"),
        (0, "", {"out_of_memory": True}, "finished"),
        (1, "", {"saved": True}, "checkpointed"),
        (143, "stop", {}, "cancelled"),
        (143, "stop", {"saved": True}, "checkpointed"),
        (137, "stop", {"saved": True, "killed": True}, "killed_at_grace"),
        (137, "stop", {"stop": ("out_of_disk", True), "saved": True, "killed": True}, "out_of_disk"),
        (0, "lease_lost", {"saved": True}, "lease_lost"),
        (137, "time_limit", {"killed": True}, "time_limit"),
        (0, "leftover", {"killed": False}, "finished"),
    ],
)
def test_the_outcome_follows_from_exit_code_and_cause(
    code: int, cause: str, more: dict[str, Any], outcome: str
) -> None:
    facts = {"stop": CANCELLED, "killed": False, "saved": False, "out_of_memory": False, **more}
    assert lifecycle_rules.outcome_of_exit(code, cause, **facts) == outcome


def test_a_workload_starts_only_with_a_lease_and_without_a_stop_order() -> None:
    stop = {"stop": {"outcome": "cancelled"}}
    assert lifecycle_rules.start_blocker({}, 10.0, 10.1) == ""
    assert lifecycle_rules.start_blocker({}, 10.0, 10.0) == "lease_lost"
    assert (
        lifecycle_rules.start_blocker(stop, 10.0, 9.0)
        == lifecycle_rules.start_blocker(stop, 10.0, 11.0)
        == "stop"
    )
    outcomes = [
        lifecycle_rules.outcome_of_unstarted(cause, "cancelled") for cause in ("stop", "lease_lost", "")
    ]
    assert outcomes == ["cancelled", "lease_lost", "start_failed"]


def test_only_the_first_stop_before_the_end_is_accepted() -> None:
    order = {"stop": {"outcome": "cancelled"}}
    assert lifecycle_rules.accepts_stop_order(order, "", ended=False)
    assert not lifecycle_rules.accepts_stop_order(order, "lease_lost", ended=False)
    assert not lifecycle_rules.accepts_stop_order(order, "", ended=True)
    assert not lifecycle_rules.accepts_stop_order({}, "", ended=False)


def test_the_time_limit_takes_precedence_over_the_lease() -> None:
    assert (
        lifecycle_rules.time_limit_deadline(100.0, 0) is None
        and lifecycle_rules.time_limit_deadline(100.0, 30) == 130.0
    )
    assert lifecycle_rules.stop_cause(130.0, 130.0, 120.0) == "time_limit"
    assert (
        lifecycle_rules.stop_cause(125.0, 130.0, 120.0)
        == lifecycle_rules.stop_cause(125.0, None, 125.0)
        == "lease_lost"
    )
    assert lifecycle_rules.stop_cause(125.0, None, 126.0) == ""


def test_out_of_memory_is_read_from_the_cgroup_or_else_from_the_host() -> None:
    assert lifecycle_rules.ran_out_of_memory(1, own=2, before=None, after=None)
    assert not lifecycle_rules.ran_out_of_memory(137, own=0, before=1, after=5)
    assert lifecycle_rules.ran_out_of_memory(137, own=None, before=1, after=2)
    assert not lifecycle_rules.ran_out_of_memory(1, own=None, before=1, after=2)
    assert not lifecycle_rules.ran_out_of_memory(137, own=None, before=None, after=2)


def test_the_shim_is_installed_privately_and_replaces_an_old_one(
    tmp_path: Path,
) -> None:
    state = StateFolder(tmp_path)
    state.tools.mkdir()
    (state.tools / "shim.py").write_text("print('the shim of an earlier version')")
    state.install_tools()
    assert not (state.tools / "shim.py").exists()
    installed = [path for path in (state.tools / "shim").rglob("*") if path.is_file()]
    assert len(installed) > 10 and {stat.S_IMODE(path.stat().st_mode) for path in installed} == {0o600}
