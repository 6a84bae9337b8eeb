"""Test the main workflow in a browser: notebook, reservation, preempted job, quota, sick host, API and CLI.

The browser shows a demo to four people. Each step builds on the previous ones, so they run in order in one
module. Requests to other hosts and errors in the console are recorded on every page. ``Person.check`` asserts
that there were none, and that the present page has no serious violation of accessibility (axe). It is called
on most pages. The steps about use and costs need the simulated past: see ``test_use_and_costs.py``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page, expect

from tests.e2e.demo_in_browser import ROOT, Person, Story, eventually, running_story
from tests.running_demo import Demo

pytestmark = [
    pytest.mark.browser,
    pytest.mark.site,
    pytest.mark.timeout(420),
    pytest.mark.xdist_group("main-job"),
]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with running_story(tmp_path_factory.mktemp("main-job") / "demo") as story:
        yield story


# -- 1 a notebook --------------------------------------------------------------------------------------------


def test_1_a_researcher_launches_a_notebook_and_runs_code_on_the_gpu_that_the_portal_names(
    story: Story,
) -> None:
    me = story["researcher"]
    page = me.go("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("My work")
    me.check()
    page.get_by_role("link", name="Launch notebook").first.click()
    expect(page.get_by_role("radio", name=re.compile("Notebook, 1 GPU"))).to_be_visible()
    me.check()
    launch(page, "first-light", type="interactive", hours="2")
    story.facts["notebook"] = page.url.split("?")[0]
    expect(page.get_by_text("JupyterLab opens here as soon as it responds")).to_be_visible()
    me.check()
    seen: list[str] = []
    while urlsplit(page.url).port == story.demo.port:
        seen += [words for words in steps_under_way(page) if words not in seen]
        assert len(seen) < 50
    assert seen, "the page showed no step as current"

    lab = page  # the notebook opened automatically
    lab.wait_for_url("**/lab**", timeout=60_000)
    address = urlsplit(lab.url)
    assert (
        address.hostname is not None
        and address.hostname.endswith(".localhost")
        and address.port == story.demo.port + 1
    )
    assert run_cell(lab, "print(6*7)") == "42"
    visible = run_cell(lab, "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert visible.startswith("GPU-")
    assert run_cell(lab, "print(open('kept.txt', 'w').write('still here'))") == "10"
    terminal(lab)

    page = me.go(urlsplit(story.facts["notebook"]).path)
    assert visible in fact(page, re.compile(r"GPU \d of h\d"))
    assert fact(page, "Type") == "Interactive"
    assert fact(page, "Project") == "Vessel segmentation"
    assert fact(page, "Longest runtime") == "2 h"
    started = page.locator("ol.steps li")
    expect(started.first).to_have_class("done")
    assert {item.get_attribute("class") for item in started.all()} == {"done"}
    assert all(re.search(r"\d\d:\d\d:\d\d", item.inner_text()) for item in started.all()), (
        started.all_inner_texts()
    )
    me.check()


def launch(page: Page, name: str, type: str, hours: str) -> None:
    """Fill in the form of a notebook on one GPU and launch it."""
    page.get_by_role("radio", name=re.compile("Notebook, 1 GPU")).check()
    page.get_by_label("Project").select_option(label="Vessel segmentation, Medical imaging")
    page.get_by_label("Workload type").select_option(type)
    page.get_by_label("Longest runtime").select_option(hours)
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Launch", exact=True).click()
    page.wait_for_url("**/notebooks/*-*/**")


def fact(page: Page, label: str | re.Pattern[str]) -> str:
    """Return the value of a label in the list of facts."""
    exact = re.compile(f"^{re.escape(label)}$") if isinstance(label, str) else label
    return (
        page.locator("dl.facts dt")
        .filter(has_text=exact)
        .locator("xpath=following-sibling::dd[1]")
        .inner_text()
    )


def steps_under_way(page: Page) -> list[str]:
    """Return the names of the steps shown as current, or none during a navigation."""
    try:
        return page.locator("ol.steps li.now b").all_inner_texts()
    except PlaywrightError:
        return []


def run_cell(lab: Page, code: str) -> str:
    """Type code into a new cell of the notebook, run it, and return its output."""
    if lab.locator(".jp-Notebook").count() == 0:
        lab.locator('.jp-LauncherCard[data-category="Notebook"]').first.click(timeout=60_000)
    cells = lab.locator(".jp-Notebook .jp-CodeCell")
    # Before its kernel responds, JupyterLab redraws the notebook and may drop typed text.
    expect(lab.get_by_role("button", name=re.compile(r"\| Idle$"))).to_be_visible(timeout=60_000)
    count = cells.count()
    text = cells.last.locator(".cm-content")
    text.click()
    lab.keyboard.insert_text(code)
    expect(text).to_have_text(code)
    lab.keyboard.press("Shift+Enter")
    output = cells.nth(count - 1).locator(".jp-OutputArea-output").first
    expect(output).to_be_visible(timeout=60_000)
    return output.inner_text().strip()


def terminal(lab: Page) -> None:
    """Assert that a terminal works over a WebSocket through the edge."""
    base = f"{urlsplit(lab.url).scheme}://{urlsplit(lab.url).netloc}"
    output = lab.evaluate(
        """async (base) => {
            const xsrf = document.cookie.split('; ').find(c => c.startsWith('_xsrf='));
            const headers = {'X-XSRFToken': xsrf ? xsrf.slice(6) : ''};
            const made = await fetch('/api/terminals', {method: 'POST', headers});
            const name = (await made.json()).name;
            const socket = new WebSocket(base.replace('http', 'ws') + '/terminals/websocket/' + name);
            return await new Promise((resolve, reject) => {
                let text = '';
                setTimeout(() => resolve(text), 20000);
                socket.onerror = () => reject(new Error('socket'));
                socket.onmessage = (event) => {
                    const [kind, data] = JSON.parse(event.data);
                    const line = ['stdin', 'echo fir$(printf st)-light\\r'];
                    if (kind === 'setup') socket.send(JSON.stringify(line));
                    if (kind === 'stdout') text += data;
                    if (text.includes('first-light')) resolve(text);
                };
            });
        }""",
        base,
    )
    assert "first-light" in output


def test_1b_saved_files_are_available_in_the_next_notebook(story: Story) -> None:
    me = story["researcher"]
    page = me.go(urlsplit(story.facts["notebook"]).path)
    stop(page)
    me.go("/notebooks/launch/")
    launch(page, "second-light", type="interactive", hours="1")
    # The notebook can be opened later from the list.
    me.go("/notebooks/")
    page.get_by_role("link", name="second-light").click()
    expect(page.get_by_text("JupyterLab is ready")).to_be_visible(timeout=90_000)
    me.check()
    with me.context.expect_page() as opened:
        page.get_by_role("button", name="Open JupyterLab").click()
    lab = opened.value
    lab.wait_for_url("**/lab**", timeout=60_000)
    assert run_cell(lab, "print(open('kept.txt').read())") == "still here"
    lab.close()
    stop(page)


def stop(page: Page) -> None:
    """Stop the workload of this page after the warning about lost data."""
    page.get_by_role("button", name="Stop", exact=True).first.click()
    expect(page.locator("#confirm")).to_contain_text("lost")
    confirm(page)
    expect(page.get_by_text("It has ended.")).to_be_visible(timeout=60_000)


def confirm(page: Page) -> None:
    page.locator("#confirm [data-confirm-yes]").click()


# -- 2 a reservation -----------------------------------------------------------------------------------------


@cache
def tomorrow_of_the_story() -> date:
    """Return tomorrow in the organisation's time zone; the same day for the whole module."""
    return datetime.now(ZoneInfo("Europe/Berlin")).date() + timedelta(days=1)


def tomorrow(hour: int) -> str:
    """Return an hour of tomorrow in the format of the browser's field."""
    return f"{tomorrow_of_the_story():%Y-%m-%d}T{hour:02d}:00"


def reservation_form(page: Page, name: str, gpus: str, hour: int, hours: str) -> None:
    """Fill in the form of a reservation of H100s for tomorrow."""
    page.get_by_label("Project").select_option(label="Vessel segmentation, Medical imaging")
    page.get_by_role("radio", name=re.compile("^H100")).check()
    page.get_by_role("radio", name=gpus, exact=True).check(force=True)
    page.locator("input[name=start]").fill(tomorrow(hour))
    page.locator("input[name=length]").fill(hours)
    page.locator("input[name=name]").fill(name)
    page.locator("textarea[name=why]").fill("The camera-ready deadline")


def test_2_a_reservation_is_approved_and_a_conflict_names_the_first_free_window(
    story: Story,
) -> None:
    me, operator = story["researcher"], story["operator"]
    page = me.go("/ask/?kind=reservation")
    me.check()
    reservation_form(page, "camera-ready", "8", 9, "8")
    # The preview shows free units over the range and that an approval is needed.
    preview = page.locator("#preview")
    expect(preview).to_contain_text("It fits, and waits for approval.", timeout=15_000)
    drawn = preview.get_by_role(
        "img", name=re.compile("^H100 80GB units free: in your range of 8 h at least 16.*you ask for 8")
    )
    expect(drawn).to_be_visible()
    expect(preview).to_contain_text("gpupool reservation create")
    me.check()
    page.get_by_role("button", name="Submit request").click()
    expect(page.locator("main")).to_contain_text(
        "camera-ready fits and waits for approval. Until then it holds no GPUs", timeout=15_000
    )
    me.check()

    desk = operator.go("/approvals/")
    operator.check()
    desk.get_by_role("link", name=re.compile("^8 × H100 80GB, ")).click()
    expect(desk.get_by_role("heading", name="Effect on others")).to_be_visible()
    expect(desk.get_by_text("The camera-ready deadline")).to_be_visible()
    expect(desk.locator("main")).to_contain_text("would be preempted")
    operator.check()
    desk.get_by_role("button", name="Approve", exact=True).click()
    expect(desk.get_by_text(re.compile("^Approved"))).to_be_visible()

    calendar = me.go("/calendar/")
    expect(calendar.locator("main")).to_contain_text("camera-ready")
    me.check()

    # The guarantee is already reserved: the form names the first free window and saves nothing.
    page = me.go("/ask/?kind=reservation")
    reservation_form(page, "too-much", "8", 10, "4")
    page.get_by_role("button", name="Submit request").click()
    expect(page.locator("main")).to_contain_text("Nothing was saved.", timeout=15_000)
    expect(page.locator("main")).to_contain_text("The first window of that length that fits starts")
    me.assert_form_was_rejected()
    me.check()
    assert "too-much" not in page.request.get(f"{story.demo.url}/api/v1/reservations/?page_size=100").text()
    block = page.locator("#preview .note.block").filter(has_text="First window that fits")
    block.get_by_role("button", name=re.compile("^Use ")).click()
    expect(page.locator("#preview")).to_contain_text("It fits", timeout=15_000)
    assert page.locator("input[name=start]").input_value() != tomorrow(10)


# -- 3 preemption --------------------------------------------------------------------------------------------


def state_of(page: Page, demo: Demo, name: str) -> dict[str, Any]:
    """Return the newest visible workload of this name, or an empty dict."""
    rows = page.request.get(f"{demo.url}/api/v1/workloads/?page_size=100").json()["results"]
    return next((row for row in rows if row["name"] == name and not row["simulated"]), {})


def job_form(page: Page, name: str, gpus: str, model: str, command: str) -> None:
    """Fill in the form of a job and submit it."""
    page.get_by_role("radio", name=re.compile(model)).check()
    page.get_by_role("radio", name=gpus, exact=True).check(force=True)
    page.locator("input[name=name]").fill(name)
    page.locator("textarea[name=command]").fill(command)
    page.locator("input[name=length]").fill("1")
    page.get_by_role("button", name="Submit request").click()
    page.wait_for_url("**/jobs/*-*/**")


def test_3_a_borrower_is_preempted_checkpoints_waits_and_resumes(story: Story) -> None:
    me, lead = story["researcher"], story["lead"]

    def borrower() -> dict[str, Any]:
        return state_of(me.page, story.demo, "vessel-sweep")

    def claimant() -> dict[str, Any]:
        return state_of(lead.page, story.demo, "urgent-fold")

    eventually(lambda: borrower()["state"] == "running", 60, "vessel-sweep runs")
    before = borrower()
    assert before["borrowed_gpus"] == 4
    page = lead.go("/jobs/submit/")
    job_form(page, "urgent-fold", "4", "^H100", "echo folding; sleep 15")
    lead.check()
    eventually(lambda: borrower()["state"] == "queued", 60, "vessel-sweep is evicted and queued again")
    waiting = borrower()
    assert waiting["checkpoint_at"] is not None and waiting["attempt"] == before["attempt"]
    job_page = me.go(f"/jobs/{before['id']}/")
    expect(job_page.get_by_role("article", name="vessel-sweep")).to_contain_text("Why it waits")
    me.check()
    eventually(lambda: claimant()["state"] == "running", 60, "urgent-fold runs")
    why = me.go(f"/workloads/{before['id']}/why/")
    expect(why.locator("main")).to_contain_text(re.compile(r"needs 4 H100|4 × H100|4 H100"))
    me.check()
    # Both owners see which team is guaranteed the GPUs, why it needs them, and what happens next.
    me.go(f"/jobs/{before['id']}/?tab=decisions")
    expect(me.page.locator("#parts")).to_contain_text(
        "Its GPUs were borrowed. They are guaranteed to Protein folding, which needs them"
    )
    expect(me.page.locator("#parts")).to_contain_text("It is queued again with its place kept")
    me.check()
    page.get_by_role("link", name="Decisions").click()
    expect(page.locator("#parts")).to_contain_text("GPUs are being freed for it: 1 workload that borrowed")
    expect(page.locator("#parts")).to_contain_text(
        "GPUs that its team is guaranteed and had lent; the borrower was preempted"
    )
    lead.check()
    me.go("/notifications/")
    notices = me.page.get_by_role("listitem").or_(me.page.get_by_role("row")).filter(has_text="vessel-sweep")
    # A later notice may be above it: on a busy machine the job has already resumed.
    expect(notices.filter(has_text=re.compile("make room|preempted|guarantee")).first).to_be_visible()
    me.check()

    eventually(lambda: claimant()["state"] == "ended", 90, "urgent-fold ended")
    eventually(lambda: borrower()["state"] == "running", 60, "vessel-sweep resumed")
    assert borrower()["attempt"] == before["attempt"] + 1
    page = me.go(f"/jobs/{before['id']}/")
    resumed = page.locator("#log").filter(has_text=re.compile(r"resuming at step \d+"))
    expect(resumed).to_be_visible(timeout=30_000)
    at = int(re.findall(r"resuming at step (\d+)", resumed.inner_text())[-1])
    me.check()
    page.get_by_role("link", name=re.compile(f"^Attempt {before['attempt']}, ")).click()
    expect(page.locator("#parts")).to_contain_text(f"Attempt {before['attempt']} on h")
    written = [
        int(step)
        for step in re.findall(r"checkpoint written at step (\d+)", page.locator("#log").inner_text())
    ]
    assert at > 0 and at == written[-1]
    me.go(f"/jobs/{before['id']}/?tab=attempts")
    first = page.locator("#parts tbody tr").filter(has_text="It wrote its checkpoint and stopped when asked.")
    expect(first).to_be_visible()
    me.check()


# -- 4 a quota change ----------------------------------------------------------------------------------------


def test_4_a_quota_change_is_approved_with_changes_and_cannot_exceed_the_pool(
    story: Story,
) -> None:
    lead, operator = story["lead"], story["operator"]
    page = lead.go("/teams/folding/quota/")
    lead.check()
    page.locator("a[href*='model=A100-80GB']").first.click()
    lead.check()
    page.get_by_label("Guaranteed GPUs").fill("99")
    page.get_by_label("Why").fill("The next model is larger")
    page.get_by_role("button", name="Send it to an operator").click()
    expect(page.locator("main")).to_contain_text("An operator could not approve this as it is.")
    lead.check()
    page.get_by_role("button", name="Send anyway").click()
    desk = operator.go("/approvals/?kind=quota_change")
    expect(desk.get_by_text("The next model is larger")).to_be_visible()
    operator.check()
    desk.get_by_role("button", name="Approve", exact=True).click()
    expect(desk.locator("main")).to_contain_text(re.compile("folding can be guaranteed up to", re.IGNORECASE))
    operator.assert_form_was_rejected()
    desk.get_by_label("Guaranteed GPUs").fill("3")
    desk.get_by_label(re.compile("Reason")).fill("Three for this quarter")
    desk.get_by_role("button", name="Approve", exact=True).click()
    expect(desk.get_by_text(re.compile("Approved:"))).to_be_visible()
    team = lead.go("/teams/folding/")
    expect(team.get_by_role("row", name=re.compile("A100 80GB 3"))).to_be_visible()
    lead.check()


# -- 5 hosts -------------------------------------------------------------------------------------------------


DONE = {
    "cordon": "cordoned: nothing new starts on it",
    "drain": "draining: nothing new starts on it",
    "return": "back in service",
}


def change_host(operator: Person, host: str, verb: str, button: str, why: str = "") -> Page:
    """Change a host's state after the page shows the effect."""
    page = operator.go(f"/hosts/{host}/{verb}/")
    operator.check()
    page.get_by_label(re.compile("Reason")).fill(why)
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.get_by_text(re.compile(f"^{host} is {DONE[verb]}"))).to_be_visible()
    return page


def test_5_a_host_is_drained_after_a_preview_and_a_planted_xid_cordons_its_host(story: Story) -> None:
    operator, lead = story["operator"], story["lead"]
    change_host(operator, "h4", "cordon", "Cordon", "New fans")
    assert host_of_running(operator.page, story.demo, "storm-1km") == "h4"
    page = operator.go("/hosts/h4/drain/")
    expect(page.get_by_role("row", name=re.compile("storm-1km"))).to_contain_text(
        "checkpoints, then waits for free GPUs"
    )
    page = change_host(operator, "h4", "drain", "Drain", "New fans")
    expect(page.get_by_text(re.compile("Still leaving: storm-1km, by "))).to_be_visible()

    eventually(
        lambda: host_of_running(operator.page, story.demo, "storm-1km") is None, 60, "storm-1km left h4"
    )
    assert state_of(operator.page, story.demo, "storm-1km")["checkpoint_at"] is not None
    change_host(operator, "h4", "return", "Return to service")
    eventually(
        lambda: host_of_running(operator.page, story.demo, "storm-1km") == "h4", 60, "storm-1km is back on h4"
    )

    # A GPU of running work falls off the bus: the host is cordoned and the work restarts on another host.
    job_form(lead.go("/jobs/submit/"), "roaming", "2", "^Any whole GPU", "echo on $(hostname); sleep 600")
    eventually(lambda: host_of_running(lead.page, story.demo, "roaming") is not None, 60, "roaming runs")
    page = lead.go(f"/jobs/{state_of(lead.page, story.demo, 'roaming')['id']}/")
    held = re.search(r"GPU (\d) of (h\d)", page.locator("dl.facts").first.inner_text())
    assert held is not None
    index, sick = held.groups()
    assert sick == "h3"
    state = str(story.demo.folder / "agents" / sick)
    plant = ["plant-xid", "--state", state, "--gpu", index, "--code", "79"]
    subprocess.run([sys.executable, "-m", "agent", *plant], cwd=ROOT, check=True)

    def admin_state() -> str:
        return str(operator.page.request.get(f"{story.demo.url}/api/v1/hosts/{sick}/").json()["admin_state"])

    eventually(lambda: admin_state() == "cordoned", 30, "the host is cordoned by the table")
    page = operator.go(f"/hosts/{sick}/")
    expect(page.locator("main")).to_contain_text(f"xid:79 on GPU {index}")
    expect(page.locator("main")).to_contain_text("The host is cordoned.")
    operator.check()
    eventually(
        lambda: host_of_running(lead.page, story.demo, "roaming") not in (None, sick),
        90,
        "its work runs elsewhere",
    )
    page = lead.go(f"/jobs/{state_of(lead.page, story.demo, 'roaming')['id']}/?tab=attempts")
    expect(page.locator("#parts tbody tr")).to_have_count(2)
    lead.check()
    change_host(operator, sick, "return", "Return to service")  # the failed GPU stays out of service
    eventually(
        lambda: host_of_running(operator.page, story.demo, "nowcast-eval") == sick,
        60,
        "the job that waited for h3 runs there",
    )


def host_of_running(page: Page, demo: Demo, name: str) -> str | None:
    """Return the name of a host of the workload's latest attempt, or None if the workload does not run."""
    row = state_of(page, demo, name)
    if row.get("state") not in ("running", "notice"):
        return None
    runs = page.request.get(f"{demo.url}/api/v1/workloads/{row['id']}/").json()["runs"]
    return str(max(runs, key=lambda run: run["attempt"])["host"])


# -- 6 API and CLI -------------------------------------------------------------------------------------------


def test_6_the_api_and_the_command_line_work_with_a_token_created_in_the_browser(
    story: Story, tmp_path: Path
) -> None:
    me = story["researcher"]
    page = me.go("/tokens/")
    me.check()
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Make the token").click()
    token = page.locator("#token").inner_text().strip()
    assert token.startswith("gpp_")
    me.check()
    login = page.locator("#login").inner_text().split()

    def cli(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "cli", *arguments],
            cwd=ROOT,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "XDG_CONFIG_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    # The command line, signed in with the command shown on the page.
    assert login[0] == "gpupool"
    cli(*login[1:])
    where = ("--project", "vessel-seg", "--pool", "shared", "--json")
    notebook = json.loads(
        cli("notebook", "launch", *where, "--template", "notebook-slice", "--name", "by-line", "--wait")
    )
    assert state_of(page, story.demo, "by-line")["state"] == "running"
    job = json.loads(
        cli(
            "job", "run", *where, "--gpus", "8", "--model", "H100-80GB", "--name", "large", "--", "sleep", "9"
        )
    )
    assert "large" in cli("queue")
    assert "8" in cli("why", job["id"])
    held = json.loads(
        cli(
            "reservation",
            "create",
            *where,
            "--gpus",
            "1",
            "--model",
            "A100-80GB",
            "--name",
            "by-line",
            "--start",
            tomorrow(18),
            "--end",
            tomorrow(20),
        )
    )
    assert held["reservation"]["state"] == "confirmed"
    calendar = me.go(f"/reservations/{held['reservation']['id']}/")
    expect(calendar.get_by_role("heading", level=1)).to_have_text("by-line")
    cli("cancel", job["id"])
    assert state_of(page, story.demo, "large")["state"] == "ended"
    cli("cancel", notebook["id"])
    eventually(
        lambda: state_of(page, story.demo, "by-line")["state"] == "ended", 60, "stopped by the command line"
    )

    # The API, with the token and without a cookie.
    api = story.requests.new_context(
        base_url=story.demo.url, extra_http_headers={"Authorization": f"Bearer {token}"}
    )
    body = {"project": "vessel-seg", "pool": "shared", "name": "by-api", "units": 8, "models": ["H100-80GB"]}
    created = api.post("/api/v1/jobs/", data={**body, "command": "sleep 9", "max_runtime_seconds": 600})
    assert created.status == 201, created.text()
    job_id = created.json()["id"]
    assert job_id in [row["id"] for row in api.get("/api/v1/queue/").json()["results"]]
    eventually(
        lambda: api.get(f"/api/v1/workloads/{job_id}/why/").json()["sentence"] != "",
        10,
        "the API returns why the job waits",
    )
    assert api.post(f"/api/v1/workloads/{job_id}/cancel/", data={}).status == 200
    assert api.get(f"/api/v1/workloads/{job_id}/").json()["state"] == "ended"
    schema = api.get("/api/schema/?format=json")
    assert schema.status == 200 and "/api/v1/jobs/" in schema.json()["paths"]
    assert api.get("/api/v1/jobs/", headers={"Authorization": "Bearer gpp_no"}).status == 401
    api.dispose()
    docs = me.go("/api/docs/")
    docs.locator("#operations-tag-jobs").click(timeout=30_000)
    expect(docs.get_by_text("/api/v1/jobs/", exact=True).first).to_be_visible(timeout=30_000)
    assert me.other_hosts == []


def test_6b_people_see_the_size_of_their_home_and_the_environments_of_their_hosts(story: Story) -> None:
    me, operator = story["researcher"], story["operator"]

    def measured() -> bool:
        page = me.go("/volumes/")
        own = page.get_by_role("row").filter(has_text="researcher")
        return bool(own.count() == 1 and re.search(r"[1-9][\d.]* [kM]B", own.inner_text()))

    eventually(measured, 150, "the home in which the notebook was saved is measured")
    me.check()
    assert "JupyterLab" in me.page.locator("#environments").inner_text()
    assert "climate-member" not in me.page.content()
    expect(operator.go("/volumes/").get_by_role("row").filter(has_text="climate-member")).to_have_count(1)
    operator.check()


def test_7_no_page_requested_another_host_or_logged_an_error(story: Story) -> None:
    for person in story.people.values():
        assert (person.username, person.other_hosts, person.errors) == (person.username, [], [])
