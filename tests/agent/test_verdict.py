"""What becomes of a workload, and what is said of its end: the rules that the shim and the simulation share."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from agent.shim import verdict
from agent.state import State

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
    assert verdict.outcome(code, cause, **facts) == outcome


def test_a_workload_begins_with_a_lease_and_without_a_stop() -> None:
    stop = {"stop": {"outcome": "cancelled"}}
    assert verdict.begins({}, 10.0, 10.1) == ""
    assert verdict.begins({}, 10.0, 10.0) == "lease_lost"
    assert verdict.begins(stop, 10.0, 9.0) == verdict.begins(stop, 10.0, 11.0) == "stop"
    told = [verdict.unbegun(cause, "cancelled") for cause in ("stop", "lease_lost", "")]
    assert told == ["cancelled", "lease_lost", "start_failed"]


def test_the_first_stop_counts_and_none_after_the_end() -> None:
    order = {"stop": {"outcome": "cancelled"}}
    assert verdict.heeds_stop(order, "", ended=False)
    assert not verdict.heeds_stop(order, "lease_lost", ended=False)
    assert not verdict.heeds_stop(order, "", ended=True)
    assert not verdict.heeds_stop({}, "", ended=False)


def test_the_time_limit_comes_before_the_lease_and_no_limit_never_does() -> None:
    assert verdict.ends_at(100.0, 0) is None and verdict.ends_at(100.0, 30) == 130.0
    assert verdict.due(130.0, 130.0, 120.0) == "time_limit"
    assert verdict.due(125.0, 130.0, 120.0) == verdict.due(125.0, None, 125.0) == "lease_lost"
    assert verdict.due(125.0, None, 126.0) == ""


def test_out_of_memory_is_what_its_own_group_says_and_else_a_kill_while_the_host_counted_one() -> None:
    assert verdict.ran_out_of_memory(1, own=2, before=None, after=None)
    assert not verdict.ran_out_of_memory(137, own=0, before=1, after=5)
    assert verdict.ran_out_of_memory(137, own=None, before=1, after=2)
    assert not verdict.ran_out_of_memory(1, own=None, before=1, after=2)
    assert not verdict.ran_out_of_memory(137, own=None, before=None, after=2)


def test_the_shim_is_laid_out_for_the_agents_user_alone_in_place_of_an_earlier_versions_one_file(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.tools.mkdir()
    (state.tools / "shim.py").write_text("print('the shim of an earlier version')")
    state.lay_out_tools()
    assert not (state.tools / "shim.py").exists()
    laid = [path for path in (state.tools / "shim").rglob("*") if path.is_file()]
    assert len(laid) > 10 and {stat.S_IMODE(path.stat().st_mode) for path in laid} == {0o600}
