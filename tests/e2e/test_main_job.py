"""The main job in a browser, from a request to a line on the statement: a whole demo, real processes, four people.

The steps build on one another, so they run in order in one module. Every page that is opened is checked on the way: no request
to another host, no error in its console, no serious violation of accessibility (axe).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.running_demo import Demo

pytestmark = [pytest.mark.browser, pytest.mark.site, pytest.mark.timeout(420), pytest.mark.xdist_group("main-job")]
ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SERIOUS = ("serious", "critical")


class Person:
    """Somebody with a browser of their own."""

    def __init__(self, browser: Browser, demo: Demo, username: str) -> None:
        self.demo, self.username = demo, username
        self.context: BrowserContext = browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="UTC")
        self.page: Page = self.context.new_page()
        self.other_hosts: list[str] = []
        self.errors: list[str] = []
        self.context.on("request", lambda request: self._note(request.url))
        self.context.on("weberror", lambda error: self.errors.append(str(error.error)))
        self.context.on("console", self._said)
        self.page.goto(f"{demo.url}/accounts/login/")
        self.page.fill("input[name=login]", username)
        self.page.fill("input[name=password]", demo.sign_ins()[username])
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("heading", level=1)).not_to_have_text("Sign in")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url')})")

    def _note(self, url: str) -> None:
        parts = urlsplit(url)
        own = {self.demo.port, self.demo.port + 1}
        if parts.scheme in ("http", "https", "ws", "wss") and (
            parts.port not in own
            or not (parts.hostname == "127.0.0.1" or (parts.hostname or "").endswith(".localhost"))
        ):
            self.other_hosts.append(url)

    def go(self, path: str) -> Page:
        answer = self.page.goto(self.demo.url + path)
        assert answer is not None and answer.status == 200, f"{path}: {answer and answer.status}"
        return self.page

    def check(self) -> None:
        """The page as it is now: accessible, alone with its own hosts, without an error."""
        results = Axe().run(self.page)
        found = [v for v in results.response["violations"] if v["impact"] in SERIOUS]
        where = [f"{v['id']}: {[node['target'] for node in v['nodes']][:3]}" for v in found]
        assert not found, f"{self.page.url}: {where}"
        assert self.other_hosts == []
        assert self.errors == []


class Story:
    """The demo, its people, and what later steps need to know of earlier ones."""

    def __init__(self, demo: Demo, browser: Browser) -> None:
        self.demo, self.browser = demo, browser
        self.people: dict[str, Person] = {}
        self.known: dict[str, Any] = {}

    def __getitem__(self, username: str) -> Person:
        if username not in self.people:
            self.people[username] = Person(self.browser, self.demo, username)
        return self.people[username]


@pytest.fixture(scope="module")
def story(house: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    demo = Demo(ROOT, tmp_path_factory.mktemp("main-job") / "demo", house.free_port(), history=True)
    try:
        demo.wait_ready()
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            yield Story(demo, browser)
            browser.close()
    finally:
        if demo.process.poll() is None:
            demo.stop()


def eventually(what: Callable[[], bool], seconds: float, words: str) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {words}"
        time.sleep(0.5)


# -- 1 a notebook ------------------------------------------------------------------------------------------------------


def test_1_a_researcher_launches_a_notebook_and_computes_42_on_the_gpu_the_portal_names(story: Story) -> None:
    me = story["researcher"]
    page = me.go("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("My work")
    me.check()
    page.get_by_role("link", name="Launch notebook").first.click()
    me.check()
    launch(page, "first-light", type="interactive", hours="2")
    story.known["notebook"] = page.url.split("?")[0]
    expect(page.get_by_text("JupyterLab opens here by itself when it answers")).to_be_visible()
    me.check()
    seen: list[str] = []
    while urlsplit(page.url).port == story.demo.port:
        seen += [words for words in steps_under_way(page) if words not in seen]
        assert len(seen) < 50
    assert seen, "no step was seen under way"

    lab = page  # it opened by itself
    lab.wait_for_url("**/lab**", timeout=60_000)
    address = urlsplit(lab.url)
    assert address.hostname is not None and address.hostname.endswith(".localhost") and address.port == story.demo.port + 1
    assert run_cell(lab, "print(6*7)") == "42"
    visible = run_cell(lab, "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert visible.startswith("GPU-")
    assert run_cell(lab, "print(open('kept.txt', 'w').write('still here'))") == "10"
    terminal(lab)

    page = me.go(urlsplit(story.known["notebook"]).path)
    assert visible in fact(page, re.compile(r"GPU \d of h\d"))
    assert fact(page, "Type") == "Interactive"
    assert fact(page, "Project") == "Vessel segmentation"
    assert fact(page, "Longest runtime") == "2 h"
    started = page.locator("ol.steps li")
    expect(started.first).to_have_class("done")
    assert {item.get_attribute("class") for item in started.all()} == {"done"}
    assert all(re.search(r"\d\d:\d\d:\d\d", item.inner_text()) for item in started.all()), started.all_inner_texts()
    me.check()


def launch(page: Page, name: str, type: str, hours: str) -> None:
    """Fill in the form of a notebook on one GPU and launch it."""
    page.get_by_role("radio", name=re.compile("Notebook, 1 GPU")).check()
    page.get_by_label("Project").select_option(label="Vessel segmentation, Medical imaging")
    page.get_by_label("Workload type").select_option(type)
    page.get_by_label("Longest life").select_option(hours)
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Launch", exact=True).click()
    page.wait_for_url("**/notebooks/*-*/**")


def fact(page: Page, label: str | re.Pattern[str]) -> str:
    """The value beside a label, in the list of what a thing is."""
    exact = re.compile(f"^{re.escape(label)}$") if isinstance(label, str) else label
    return page.locator("dl.facts dt").filter(has_text=exact).locator("xpath=following-sibling::dd[1]").inner_text()


def steps_under_way(page: Page) -> list[str]:
    """The names of the steps that the page shows as happening now; none while it is on its way to another page."""
    try:
        return page.locator("ol.steps li.now b").all_inner_texts()
    except PlaywrightError:
        return []


def run_cell(lab: Page, code: str) -> str:
    """Type code into a new cell of a (new) notebook, run it, and read what it prints."""
    if lab.locator(".jp-Notebook").count() == 0:
        lab.locator('.jp-LauncherCard[data-category="Notebook"]').first.click(timeout=60_000)
    cells = lab.locator(".jp-Notebook .jp-CodeCell")
    # Before its kernel answers, JupyterLab draws the notebook again and may drop what was typed.
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
    """A terminal works: its bytes go over a WebSocket through the edge."""
    base = f"{urlsplit(lab.url).scheme}://{urlsplit(lab.url).netloc}"
    said = lab.evaluate(
        """async (base) => {
            const xsrf = document.cookie.split('; ').find(c => c.startsWith('_xsrf='));
            const made = await fetch('/api/terminals', {method: 'POST', headers: {'X-XSRFToken': xsrf ? xsrf.slice(6) : ''}});
            const name = (await made.json()).name;
            const socket = new WebSocket(base.replace('http', 'ws') + '/terminals/websocket/' + name);
            return await new Promise((resolve, reject) => {
                let text = '';
                setTimeout(() => resolve(text), 20000);
                socket.onerror = () => reject(new Error('socket'));
                socket.onmessage = (event) => {
                    const [kind, data] = JSON.parse(event.data);
                    if (kind === 'setup') socket.send(JSON.stringify(['stdin', 'echo fir$(printf st)-light\\r']));
                    if (kind === 'stdout') text += data;
                    if (text.includes('first-light')) resolve(text);
                };
            });
        }""",
        base,
    )
    assert "first-light" in said


def test_1b_what_was_saved_is_there_in_the_next_notebook(story: Story) -> None:
    me = story["researcher"]
    page = me.go(urlsplit(story.known["notebook"]).path)
    stop(page)
    me.go("/notebooks/launch/")
    launch(page, "second-light", type="interactive", hours="1")
    # Who comes back later finds it in the list, and opens it from its page.
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
    """Stop the workload of this page, having been told what is lost."""
    page.get_by_role("button", name="Stop", exact=True).first.click()
    expect(page.locator("#confirm")).to_contain_text("lost")
    confirm(page)
    expect(page.get_by_text("It has ended.")).to_be_visible(timeout=60_000)


def confirm(page: Page) -> None:
    page.locator("#confirm [data-confirm-yes]").click()


# -- 2 a reservation ---------------------------------------------------------------------------------------------------


def tomorrow(hour: int) -> str:
    day = datetime.now(UTC) + timedelta(days=1)
    return f"{day:%Y-%m-%d}T{hour:02d}:00"


def ask_for(page: Page, name: str, gpus: str, hour: int, hours: str) -> None:
    page.get_by_role("radio", name="Reservation", exact=True).check(force=True)
    page.get_by_role("radio", name=re.compile("H100")).first.check()
    if gpus in ("1", "2", "4", "8"):
        page.get_by_role("radio", name=gpus, exact=True).check(force=True)
    else:
        page.get_by_role("radio", name="Other", exact=True).check(force=True)
        page.get_by_label("How many", exact=True).fill(gpus)
    page.locator("input[name=start]").fill(tomorrow(hour))
    page.locator("input[name=length]").fill(hours)
    page.locator("input[name=name]").fill(name)
    page.locator("textarea[name=why]").fill("The camera-ready deadline")


def test_2_a_reservation_waits_for_approval_stands_in_the_calendar_and_a_conflict_gets_the_first_window(
    story: Story,
) -> None:
    me, operator = story["researcher"], story["operator"]
    page = me.go("/ask/?kind=reservation")
    me.check()
    ask_for(page, "camera-ready", "8", 9, "8")
    expect(page.locator("#preview")).to_contain_text(re.compile("free|approval", re.I), timeout=15_000)
    page.get_by_role("button", name="Submit request").click()
    expect(page.locator("main")).to_contain_text(re.compile("wait", re.I), timeout=15_000)

    desk = operator.go("/approvals/")
    operator.check()
    desk.get_by_role("link", name=re.compile("8 .*H100")).first.click()
    expect(desk.get_by_text("Effect on others")).to_be_visible()
    expect(desk.get_by_text("The camera-ready deadline")).to_be_visible()
    operator.check()
    desk.get_by_role("button", name=re.compile("^Approve")).last.click()
    expect(desk.get_by_text(re.compile("Approved"))).to_be_visible()

    calendar = me.go("/calendar/")
    expect(calendar.locator("main")).to_contain_text("camera-ready")
    me.check()
    page = me.go("/ask/?kind=reservation")
    ask_for(page, "too-much", "8", 10, "4")
    page.get_by_role("button", name="Submit request").click()
    expect(page.locator("main")).to_contain_text(re.compile("first window|First free|earliest", re.I), timeout=15_000)


# -- 3 preemption ------------------------------------------------------------------------------------------------------


def state_of(page: Page, demo: Demo, name: str) -> dict[str, Any]:
    rows = page.request.get(f"{demo.url}/api/v1/workloads/?name={name}").json()["results"]
    return next((row for row in rows if row["name"] == name), {})


def test_3_lent_gpus_come_back_the_borrower_checkpoints_waits_and_resumes(story: Story) -> None:
    lead, operator = story["lead"], story["operator"]
    eventually(lambda: state_of(operator.page, story.demo, "era5-tune").get("state") == "running", 60, "era5-tune runs")
    page = lead.go("/jobs/submit/")
    page.get_by_role("radio", name=re.compile("H100")).first.check()
    page.get_by_role("radio", name="4", exact=True).check(force=True)
    page.locator("input[name=name]").fill("urgent-fold")
    page.locator("textarea[name=command]").fill("echo folding; sleep 20")
    page.locator("input[name=length]").fill("1")
    page.get_by_role("button", name="Submit request").click()
    expect(page.locator("main")).to_contain_text("urgent-fold", timeout=15_000)
    eventually(
        lambda: state_of(operator.page, story.demo, "era5-tune").get("state") == "queued", 90, "era5-tune made room"
    )
    eventually(
        lambda: state_of(operator.page, story.demo, "urgent-fold").get("state") in ("running", "ended"),
        60,
        "urgent-fold runs",
    )
    victim = state_of(operator.page, story.demo, "era5-tune")
    why = operator.go(f"/workloads/{victim['id']}/why/")
    expect(why.locator("main")).to_contain_text(re.compile("Protein folding|guarantee", re.I))
    operator.check()
    page.reload()
    expect(page.locator("main")).to_contain_text(re.compile("guarantee", re.I))
    eventually(
        lambda: state_of(operator.page, story.demo, "urgent-fold").get("state") == "ended", 90, "urgent-fold ended"
    )
    eventually(
        lambda: state_of(operator.page, story.demo, "era5-tune").get("state") == "running", 90, "era5-tune resumed"
    )
    log = operator.go(f"/jobs/{victim['id']}/")
    expect(log.locator("main")).to_contain_text(re.compile(r"resuming at step \d+"), timeout=30_000)
    operator.check()


# -- 4 a quota change --------------------------------------------------------------------------------------------------


def test_4_a_quota_change_is_requested_approved_changed_and_the_sum_cannot_exceed_the_pool(story: Story) -> None:
    lead, operator = story["lead"], story["operator"]
    page = lead.go("/teams/folding/quota/")
    lead.check()
    page.get_by_label("GPU model").select_option("A100-80GB")
    page.get_by_label("Guaranteed GPUs").fill("99")
    page.get_by_label("Why").fill("The next model is larger")
    page.get_by_role("button", name="Send it to an operator").click()
    desk = operator.go("/approvals/?kind=quota_change")
    expect(desk.get_by_text("The next model is larger")).to_be_visible()
    desk.get_by_role("button", name=re.compile("^Approve")).last.click()
    expect(desk.locator("main")).to_contain_text(re.compile("allowed: up to"))
    desk.get_by_label("Guaranteed GPUs").fill("3")
    desk.get_by_label(re.compile("Reason")).fill("Three for this quarter")
    desk.get_by_role("button", name=re.compile("^Approve")).last.click()
    expect(desk.get_by_text(re.compile("Approved:"))).to_be_visible()
    team = lead.go("/teams/folding/")
    expect(team.get_by_role("row", name=re.compile("A100 80GB 3"))).to_be_visible()
    lead.check()


# -- 5 and 6 use and money ---------------------------------------------------------------------------------------------


def test_5_utilisation_shows_live_and_past_use_with_a_table_and_a_csv_behind_each_chart(story: Story) -> None:
    operator = story["operator"]
    eventually(lambda: (story.demo.folder / "history.done").exists(), 300, "the simulated past is loaded")
    page = operator.go("/utilisation/?period=30d")
    expect(page.locator(".js-plotly-plot").first).to_be_visible(timeout=30_000)
    assert page.locator(".js-plotly-plot").count() >= 6
    expect(page.locator("main")).to_contain_text("simulated history")
    operator.check()
    for chart in page.get_by_role("link", name="CSV", exact=True).all():
        answer = page.request.get(story.demo.url + str(chart.get_attribute("href")))
        assert answer.status == 200 and len(answer.text().splitlines()) > 1, chart.get_attribute("href")
    fleet = operator.go("/fleet/")
    expect(fleet.locator("main")).to_contain_text("simulated")
    operator.check()


def test_6_the_month_adds_up_downloads_and_closes_for_good(story: Story) -> None:
    finance = story["finance"]
    page = finance.go("/chargeback/")
    finance.check()
    page.locator("a[aria-label]").filter(has=page.locator("svg")).first.click()  # the month before
    expect(page.get_by_text("Does it add up?")).to_be_visible()
    expect(page.locator(".check-result")).to_contain_text("0.00")
    for column in ("Team", "Project", "Workload type", "Person"):
        page.get_by_role("link", name=column, exact=True).click()
        expect(page.get_by_role("columnheader", name=column)).to_be_visible()
    month = page.url.split("month=")[1][:7]
    statement = page.request.get(f"{story.demo.url}/chargeback/?month={month}&format=statement")
    assert statement.status == 200 and "CC-4100" in statement.text()
    page.goto(f"{story.demo.url}/chargeback/?month={month}")
    page.get_by_role("link", name=re.compile("^Close ")).click()
    finance.check()
    page.get_by_role("button", name="Close it for good").click()
    expect(page.get_by_text(re.compile("is closed"))).to_be_visible(timeout=60_000)
    again = page.request.get(f"{story.demo.url}/chargeback/?month={month}&format=statement")
    assert again.body() == statement.body()
    finance.check()


# -- 7 hosts -----------------------------------------------------------------------------------------------------------


def test_7_a_host_is_drained_with_its_effect_shown_and_a_planted_xid_cordons_its_host(story: Story) -> None:
    operator = story["operator"]
    where = where_runs(operator.page, story.demo, "nowcast-eval")
    page = operator.go(f"/hosts/{where}/drain/")
    expect(page.locator("main")).to_contain_text("nowcast-eval")
    operator.check()
    page.get_by_label(re.compile("Reason")).fill("New fans")
    page.get_by_role("button", name="Drain").click()
    expect(page.get_by_text(re.compile("drain is done"))).to_be_visible()
    eventually(lambda: where_runs(operator.page, story.demo, "nowcast-eval") is None, 90, "nowcast-eval left")
    operator.go(f"/hosts/{where}/return/")
    page.get_by_role("button", name="Return to service").click()
    expect(page.get_by_text(re.compile("return to service is done"))).to_be_visible()
    eventually(lambda: where_runs(operator.page, story.demo, "nowcast-eval") is not None, 90, "nowcast-eval runs again")

    eventually(lambda: where_runs(operator.page, story.demo, "mri-pretrain") is not None, 60, "mri-pretrain runs")
    sick = where_runs(operator.page, story.demo, "mri-pretrain")
    assert sick is not None
    subprocess.run(
        [
            sys.executable,
            "-m",
            "agent",
            "plant-xid",
            "--state",
            str(story.demo.folder / "agents" / sick),
            "--gpu",
            "0",
            "--code",
            "79",
        ],
        cwd=ROOT,
        check=True,
    )
    host = operator.go(f"/hosts/{sick}/")
    eventually(
        lambda: (
            operator.page.request.get(f"{story.demo.url}/api/v1/hosts/{sick}/").json()["admin_state"] != "in_service"
        ),
        60,
        "the host is out of service by the table",
    )
    host.reload()
    expect(host.locator("main")).to_contain_text("xid:79")
    operator.check()
    eventually(lambda: where_runs(operator.page, story.demo, "mri-pretrain") != sick, 120, "its work left the host")


def where_runs(page: Page, demo: Demo, name: str) -> str | None:
    """The host a workload runs on, None while it waits."""
    found = state_of(page, demo, name)
    if found.get("state") not in ("running", "notice"):
        return None
    runs = page.request.get(f"{demo.url}/api/v1/workloads/{found['id']}/").json()["runs"]
    return str(runs[-1]["host"])


# -- 8 API and CLI -----------------------------------------------------------------------------------------------------


def test_8_the_same_verbs_by_api_and_command_line_with_a_token_made_in_the_browser(
    story: Story, tmp_path: Path
) -> None:
    me = story["researcher"]
    page = me.go("/tokens/")
    me.check()
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Make the token").click()
    token = page.locator("#token").inner_text().strip()
    assert token.startswith("gpp_")
    schema = page.request.get(f"{story.demo.url}/api/schema/?format=json")
    assert schema.status == 200
    docs = me.go("/api/docs/")
    expect(docs.locator("#swagger-ui, .swagger-ui").first).to_be_visible(timeout=30_000)
    assert me.other_hosts == []

    def cli(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "cli", *arguments],
            cwd=ROOT,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "XDG_CONFIG_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    cli("login", story.demo.url, "--token", token)
    made = json.loads(
        cli(
            "job",
            "run",
            "--project",
            "vessel-seg",
            "--pool",
            "shared",
            "--gpus",
            "1",
            "--name",
            "by-cli",
            "--json",
            "--",
            "sleep",
            "300",
        )
    )
    assert "by-cli" in cli("queue") or made["state"] in ("queued", "placed", "starting", "running")
    assert cli("why", made["id"]).strip()
    cli("cancel", made["id"])
    eventually(
        lambda: state_of(page, story.demo, "by-cli").get("state") == "ended", 60, "cancelled by the command line"
    )


def test_9_nobody_met_another_host_or_an_error_on_the_way(story: Story) -> None:
    for person in story.people.values():
        assert (person.username, person.other_hosts, person.errors) == (person.username, [], [])


@pytest.fixture(scope="module")
def house() -> ModuleType:
    from tests.house.conftest import house as load

    return load.__wrapped__()  # type: ignore[attr-defined, no-any-return]
