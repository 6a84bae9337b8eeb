"""What becomes of a workload, and what is said of its end: the rules that the shim and the simulation share."""

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
def test_an_end_is_told_for_what_it_was(code: int, cause: str, more: dict[str, Any], outcome: str) -> None:
    facts = {"stop": CANCELLED, "killed": False, "saved": False, "out_of_memory": False, **more}
    assert lifecycle_rules.outcome_of_exit(code, cause, **facts) == outcome


def test_a_workload_begins_with_a_lease_and_without_a_stop() -> None:
    stop = {"stop": {"outcome": "cancelled"}}
    assert lifecycle_rules.start_blocker({}, 10.0, 10.1) == ""
    assert lifecycle_rules.start_blocker({}, 10.0, 10.0) == "lease_lost"
    assert (
        lifecycle_rules.start_blocker(stop, 10.0, 9.0)
        == lifecycle_rules.start_blocker(stop, 10.0, 11.0)
        == "stop"
    )
    told = [lifecycle_rules.outcome_of_unstarted(cause, "cancelled") for cause in ("stop", "lease_lost", "")]
    assert told == ["cancelled", "lease_lost", "start_failed"]


def test_the_first_stop_counts_and_none_after_the_end() -> None:
    order = {"stop": {"outcome": "cancelled"}}
    assert lifecycle_rules.accepts_stop_order(order, "", ended=False)
    assert not lifecycle_rules.accepts_stop_order(order, "lease_lost", ended=False)
    assert not lifecycle_rules.accepts_stop_order(order, "", ended=True)
    assert not lifecycle_rules.accepts_stop_order({}, "", ended=False)


def test_the_time_limit_comes_before_the_lease_and_no_limit_never_does() -> None:
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


def test_out_of_memory_is_what_its_own_group_says_and_else_a_kill_while_the_host_counted_one() -> None:
    assert lifecycle_rules.ran_out_of_memory(1, own=2, before=None, after=None)
    assert not lifecycle_rules.ran_out_of_memory(137, own=0, before=1, after=5)
    assert lifecycle_rules.ran_out_of_memory(137, own=None, before=1, after=2)
    assert not lifecycle_rules.ran_out_of_memory(1, own=None, before=1, after=2)
    assert not lifecycle_rules.ran_out_of_memory(137, own=None, before=None, after=2)


def test_the_shim_is_laid_out_for_the_agents_user_alone_in_place_of_an_earlier_versions_one_file(
    tmp_path: Path,
) -> None:
    state = StateFolder(tmp_path)
    state.tools.mkdir()
    (state.tools / "shim.py").write_text("print('the shim of an earlier version')")
    state.install_tools()
    assert not (state.tools / "shim.py").exists()
    laid = [path for path in (state.tools / "shim").rglob("*") if path.is_file()]
    assert len(laid) > 10 and {stat.S_IMODE(path.stat().st_mode) for path in laid} == {0o600}
