"""Test a change of MIG geometry from the browser in a whole demo with real agents."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.e2e.demo_in_browser import FLAGS, Person, eventually
from tests.e2e.test_main_job import host_of_running, state_of
from tests.running_demo import Demo, free_pair
from tests.waiting import PAGE_MILLISECONDS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.site,
    pytest.mark.timeout(420),
    pytest.mark.xdist_group("site"),
]
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Person]:
    demo = Demo(ROOT, tmp_path / "demo", free_pair())
    try:
        demo.wait_ready(240)
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        expect.set_options(timeout=PAGE_MILLISECONDS)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            yield Person(browser, demo, "operator")
            browser.close()
    finally:
        if demo.process.poll() is None:
            demo.stop()


def geometry(operator: Person, index: int) -> dict[str, Any]:
    rows = operator.page.request.get(f"{operator.demo.url}/api/v1/hosts/h1/geometry/").json()
    row: dict[str, Any] = rows[index]
    return row


def change_geometry(operator: Person, index: int, profiles: str) -> Page:
    """Request the geometry after the page shows its effect."""
    page = operator.go(f"/hosts/h1/gpus/{index}/geometry/?geometry={profiles.replace('+', '%2B')}")
    expect(page.get_by_role("heading", name="Effects")).to_be_visible()
    operator.check()
    page.get_by_label("Reason").fill("small notebooks")
    page.get_by_role("button", name="Change the geometry").click()
    expect(page.get_by_text(f"GPU {index} of h1 gets no new work.")).to_be_visible()
    return page


def wait_until_ended(operator: Person, index: int, state: str) -> dict[str, Any]:
    """Wait until the change is over and assert its state. Returns the GPU's geometry row."""
    eventually(
        lambda: geometry(operator, index)["last_change"]["state"] in ("done", "failed"), 120, "it is over"
    )
    row = geometry(operator, index)
    assert row["last_change"]["state"] == state, row
    return row


def test_a_gpu_is_drained_split_and_made_whole_again_after_a_failed_try(operator: Person) -> None:
    eventually(
        lambda: host_of_running(operator.page, operator.demo, "mri-pretrain") == "h1",
        90,
        "work holds all of h1",
    )
    page = operator.go("/hosts/h1/gpus/1/geometry/?geometry=7x1g.10gb")
    expect(page.get_by_role("row", name="mri-pretrain")).to_contain_text("gets a notice")
    change_geometry(operator, 1, "1x3g.40gb+4x1g.10gb")
    assert wait_until_ended(operator, 1, "done")["geometry"] == "1x3g.40gb+4x1g.10gb"
    assert state_of(operator.page, operator.demo, "mri-pretrain")["checkpoint_at"] is not None, (
        "the evicted work wrote a checkpoint"
    )
    page = operator.go("/hosts/h1/")
    expect(page.get_by_role("cell", name="1 3g.40gb")).to_be_visible()
    operator.check()

    state = str(operator.demo.folder / "agents" / "h1")

    def plant_fault(fault: str) -> None:
        command = [
            sys.executable,
            "-m",
            "agent",
            "plant-fault",
            "--state",
            state,
            "--gpu",
            "1",
            "--fault",
            fault,
        ]
        subprocess.run(command, cwd=ROOT, check=True)

    plant_fault("geometry-in-use")
    change_geometry(operator, 1, "whole")
    assert wait_until_ended(operator, 1, "failed")["geometry"] == "1x3g.40gb+4x1g.10gb"
    page = operator.go("/hosts/h1/gpus/1/geometry/")
    expect(page.locator("main")).to_contain_text("a process still uses the GPU")
    operator.check()
    plant_fault("none")
    change_geometry(operator, 1, "whole")
    assert wait_until_ended(operator, 1, "done")["geometry"] == "whole"
    assert operator.errors == [] and operator.other_hosts == []
