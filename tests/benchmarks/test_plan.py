"""Test the plan benchmark on a small pool: it reports timings, and the plan verifier finds no violation."""

from __future__ import annotations

import pytest

from benchmarks import plan


@pytest.mark.parametrize(("gpus", "queued"), [(80, 100), (160, 0)])
def test_a_cycle_is_timed_and_checked(gpus: int, queued: int) -> None:
    figures = plan.main(["--gpus", str(gpus), "--queued", str(queued), "--rounds", "1"])
    assert {"gpus", "queued", "placed", "evicted", "violations", "seconds", "one_ask_seconds"} <= set(figures)
    assert (figures["gpus"], figures["queued"], figures["violations"]) == (gpus, queued, 0)
    assert figures["seconds"] > 0 and figures["one_ask_seconds"] > 0
    settled = figures["settled"]
    assert settled["queued"] < queued or not queued
    assert settled["seconds"] > 0 and settled["decided_seconds"] > 0
