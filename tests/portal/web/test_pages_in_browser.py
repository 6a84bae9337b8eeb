"""Test the behaviour of pages that only a browser shows: scripts and layout.

Each test checks one behaviour; tests/e2e covers whole workflows. The short part has one test of a script, of
the live refresh and of the layout.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright
from pytest_django.plugin import DjangoDbBlocker

from portal.models import User
from portal.services.approvals import submissions
from scheduler.models import Allocation, Workload
from scheduler.runs import logs
from telemetry.models import Charge
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.portal.charged_january import MONTH, charged
from tests.portal.web.work_samples import make_waiting, run_job, start
from tests.telemetry.test_rollups import write_samples
from tests.waiting import PAGE_MILLISECONDS, wait_until
from tests.world import H100, PASSWORD, SHARED_WORLD, World

__all__ = ["charged"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("pages-in-browser"),
]
LIMA = "America/Lima"


@pytest.fixture(scope="module")
def chromium(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Browser]:
    """Start Chromium once for these tests.

    Playwright runs an event loop in this thread, so Django must allow ORM calls in the same thread. From then
    on, the thread has another database connection. So the transaction of the shared world must be closed.
    """
    with django_db_blocker.unblock():
        SHARED_WORLD.close()
    program = next(
        path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))
    )
    expect.set_options(timeout=PAGE_MILLISECONDS)
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Return Chromium without a context of an earlier test."""
    yield chromium
    for context in chromium.contexts:
        context.close()


def sign_in(browser: Browser, live_server: Any, username: str, **context: Any) -> Page:
    """Return a page of a new browser context in which this user has signed in."""
    page = browser.new_context(viewport={"width": 1280, "height": 800}, **context).new_page()
    page.goto(f"{live_server.url}/accounts/login/")
    page.fill("input[name=login]", username)
    page.fill("input[name=password]", PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).not_to_have_text("Sign in")
    return page


def test_the_first_page_after_signing_in_uses_the_time_zone_of_the_browser(
    world: World, live_server: Any, browser: Browser
) -> None:
    page = sign_in(browser, live_server, world.vision.member.username, timezone_id=LIMA)
    assert page.locator("html").get_attribute("data-zone") == LIMA
    assert page.get_by_text(f"Times in {LIMA}", exact=True).count() == 1
    # A deep link without the cookie is loaded again once, so that all of its times have one zone.
    page.context.clear_cookies(name="tz")
    page.goto(f"{live_server.url}/tokens/")
    expect(page.locator("html")).to_have_attribute("data-zone", LIMA)


def test_no_single_key_decides_a_request(world: World, live_server: Any, browser: Browser) -> None:
    row = submissions.request_quota_change(
        actor=world.vision.lead,
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=9,
        now=world.now,
    )

    def state() -> str:
        row.refresh_from_db()
        return row.state

    page = sign_in(browser, live_server, world.operator.username)
    page.goto(f"{live_server.url}/approvals/")
    approve = page.get_by_role("button", name="Approve", exact=True)
    page.keyboard.press("a")
    page.get_by_label("Reason, sent to the author").press("Enter")
    page.keyboard.press("Alt+Shift+A")
    expect(approve).to_be_focused()
    assert state() == "waiting" and page.url.endswith("/approvals/")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Nothing waits", exact=True)).to_be_visible()
    assert state() == "approved"


def test_no_field_of_the_request_form_is_covered(world: World, live_server: Any, browser: Browser) -> None:
    page = sign_in(browser, live_server, world.vision.member.username)
    for width, height in ((1280, 800), (360, 640)):
        page.set_viewport_size({"width": width, "height": height})
        page.goto(f"{live_server.url}/ask/")
        bar = page.locator(".ask-submit")
        for name in ("length", "why"):
            page.locator(f"[name={name}]").focus()
            field, below = page.locator(f"[name={name}]").bounding_box(), bar.bounding_box()
            assert field is not None and below is not None
            assert field["y"] + field["height"] <= below["y"], (name, width)


# Otherwise the part is refreshed every ten seconds.
REFRESH_NOW = """() => {
  const live = document.getElementById("live-part");
  htmx.trigger(live, live.getAttribute("hx-trigger").split(" ")[0]);
}"""

CUT = """() => [...document.querySelectorAll(".scroll, .segmented, .tabs")]
  .filter(part => part.scrollWidth > part.clientWidth + 1).map(part => part.textContent.slice(0, 60))"""


@pytest.mark.long
@pytest.mark.usefixtures("charged")
def test_no_table_or_choice_is_cut_off_on_a_phone(world: World, live_server: Any, browser: Browser) -> None:
    User.objects.filter(pk=world.operator.pk).update(finance=True)
    page = sign_in(browser, live_server, world.operator.username)
    page.set_viewport_size({"width": 360, "height": 640})
    pages = [
        reverse(name)
        for name in (
            *("approvals", "health-rules", "fleet", "queue", "calendar", "budgets", "cost-centres"),
            "retention",
        )
    ]
    january = f"{reverse('chargeback')}?month=2026-01"
    job = Workload.objects.get()
    idle = reverse("idle-payer", args=["2026-01"])
    pages += [f"{reverse('utilisation-requests')}?period=30d&size=1", reverse("pool-alerts", args=["shared"])]
    for address in (*pages, idle, january, f"{january}&by=person", f"{january}&workload={job.pk}"):
        page.goto(f"{live_server.url}{address}")
        page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
        assert page.evaluate(CUT) == [], address
        assert page.evaluate("document.documentElement.scrollWidth") == 360, address


def test_confirming_a_stop_works_after_the_page_refreshed_itself(
    world: World, live_server: Any, browser: Browser
) -> None:
    desk = run_job(world, world.vision, "desk", host="alpha", gpus=[0], kind="notebook")
    page = sign_in(browser, live_server, world.vision.member.username)
    page.goto(f"{live_server.url}/notebooks/{desk.public_id}/")
    page.locator("#live-part").get_by_role("button", name="Stop", exact=True).click()
    page.evaluate("const part = document.getElementById('live-part'); part.outerHTML = part.outerHTML;")
    with page.expect_navigation():
        page.locator("#confirm").get_by_role("button", name="Stop desk").click()
    expect(page.get_by_text("desk is being cancelled: it is asked to save and to end.")).to_be_visible()
    desk.refresh_from_db()
    assert (desk.state, desk.stop_requested) == ("stopping", "cancelled")
    expect(page.locator("#live-part")).to_contain_text("It is being cancelled by you.")


@pytest.mark.long
def test_the_whole_page_updates_when_waiting_work_starts(
    world: World, live_server: Any, browser: Browser
) -> None:
    job = make_waiting(world, world.vision, "mri-foundation", units=1)
    page = sign_in(browser, live_server, world.vision.member.username)
    page.goto(f"{live_server.url}/jobs/{job.public_id}/?tab=attempts")
    expect(page.locator("#parts")).to_contain_text("Not placed yet")
    start(world, job, host="alpha", gpus=[0], since=timezone.now())
    expect(page.locator("#live-part")).to_contain_text("alpha, GPU 0", timeout=20_000)
    expect(page.locator("#parts").get_by_role("link", name="Attempts")).to_contain_text("1")
    expect(page.locator("#parts")).to_contain_text("alpha")
    expect(page.locator("aside").last).to_contain_text("GPU 0 of alpha")


@pytest.mark.long
def test_a_message_disappears_when_the_state_it_is_about_has_ended(
    world: World, live_server: Any, browser: Browser
) -> None:
    job = make_waiting(world, world.vision, "mri-foundation", units=1)
    page = sign_in(browser, live_server, world.vision.member.username)
    page.goto(f"{live_server.url}/jobs/{job.public_id}/")
    page.locator("#live-part").get_by_role("button", name="Cancel", exact=True).click()
    with page.expect_navigation():
        page.locator("#confirm").get_by_role("button", name="Cancel").last.click()
    expect(page.locator(".messages")).to_contain_text("mri-foundation")
    message = page.locator(".messages .note")
    expect(message).to_have_count(1)
    Workload.objects.filter(pk=job.pk).update(state="queued", outcome="", ended_at=None)
    expect(message).to_have_count(0, timeout=20_000)


@pytest.mark.long
def test_a_growing_log_stays_at_its_end_until_the_user_scrolls_back(
    world: World, live_server: Any, browser: Browser
) -> None:
    job = run_job(world, world.vision, "mri-foundation", host="alpha", gpus=[0])
    run, written = job.runs.get(), 0
    page = sign_in(browser, live_server, world.vision.member.username)

    def append_lines(number: int) -> None:
        nonlocal written
        lines = "".join(f"part {number} step {step}\n" for step in range(100))
        logs.append_log(run.public_id, written, lines)
        written += len(lines)

    def distance_from_end() -> int:
        expect(page.locator("#log")).to_contain_text(f"part {part} step 99", timeout=10_000)
        page.wait_for_timeout(100)
        return int(
            page.evaluate(
                "(log => log.scrollHeight - log.scrollTop - log.clientHeight)(document.getElementById('log'))"
            )
        )

    for part in range(3):
        append_lines(part)
        if part == 0:
            page.goto(f"{live_server.url}/jobs/{job.public_id}/")
        assert distance_from_end() < 2, part
    page.evaluate("document.getElementById('log').scrollTop = 100")
    part = 3
    append_lines(part)
    assert distance_from_end() > 1000
    assert page.evaluate("document.getElementById('log').scrollTop") == 100


@pytest.mark.long
def test_new_lines_of_a_log_do_not_cancel_the_reload_of_its_tab(
    world: World, live_server: Any, browser: Browser
) -> None:
    job = run_job(world, world.vision, "mri-foundation", host="alpha", gpus=[0])
    logs.append_log(job.runs.get().public_id, 0, "step 1\n")
    page = sign_in(browser, live_server, world.vision.member.username)
    page.goto(f"{live_server.url}/jobs/{job.public_id}/")
    page.evaluate("document.getElementById('log').classList.add('as-it-was')")
    held: list[Route] = []
    page.route("**/*part=tab*", lambda route: held.append(route))
    with page.expect_request("**/*part=tab*"):
        page.evaluate("document.body.dispatchEvent(new Event('next-stage'))")
    page.evaluate("htmx.trigger(document.getElementById('log-tail'), 'sse:log')")
    held[0].continue_()
    expect(page.locator("#log")).to_contain_text("step 1")
    expect(page.locator("#log.as-it-was")).to_have_count(0)


@pytest.mark.parametrize(
    "reading",
    [
        "an earlier line",
        *(pytest.param(reading, marks=pytest.mark.long) for reading in ("selected lines", "the end")),
    ],
)
def test_a_log_keeps_its_scroll_position_when_its_job_ends(
    world: World, live_server: Any, browser: Browser, reading: str
) -> None:
    job = run_job(world, world.vision, "mri-foundation", host="alpha", gpus=[0])
    run = job.runs.get()
    logs.append_log(run.public_id, 0, "".join(f"step {number}\n" for number in range(500)))
    page = sign_in(browser, live_server, world.vision.member.username)
    page.goto(f"{live_server.url}/jobs/{job.public_id}/")
    expect(page.locator("#log")).to_contain_text("step 499")
    if reading == "an earlier line":
        page.evaluate("document.getElementById('log').scrollTop = 100")
        expect(page.locator("#log[data-at-end=false]")).to_have_count(1)
    elif reading == "selected lines":
        page.evaluate("getSelection().selectAllChildren(document.getElementById('log'))")
    page.evaluate("document.getElementById('log').classList.add('as-it-was')")
    run.state, run.ended_at, run.outcome = "ended", timezone.now(), "finished"
    run.save()
    job.state, job.ended_at, job.outcome = "ended", run.ended_at, "finished"
    job.save()
    page.evaluate(REFRESH_NOW)
    expect(page.locator("#live-part")).to_contain_text("Finished", timeout=20_000)
    if reading != "the end":
        expect(page.locator("#log.as-it-was")).to_have_count(1)
    if reading == "an earlier line":
        assert page.evaluate("document.getElementById('log').scrollTop") == 100
        page.evaluate("(log => { log.scrollTop = log.scrollHeight; })(document.getElementById('log'))")
    elif reading == "selected lines":
        page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#log.as-it-was")).to_have_count(0)


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_of_charges_fit_their_windows(
    world: World, live_server: Any, browser: Browser, charged: Workload, theme: str
) -> None:
    line = Charge.objects.filter(workload=charged).earliest("pk")
    page = sign_in(browser, live_server, world.finance.username, color_scheme=theme)
    addresses = (
        f"{reverse('chargeback')}?month={MONTH}",
        f"{reverse('chargeback')}?month={MONTH}&workload={charged.pk}",
        reverse("charge-line", args=[line.pk]),
        f"{reverse('chargeback')}?month=1999-01",
    )
    for width in (390, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        for address in addresses:
            page.goto(f"{live_server.url}{address}")
            if scope := page.locator(".scope summary").all():
                scope[0].click()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, address


def measure_minute(work: Workload, minutes_ago: int) -> None:
    """Store samples of a busy minute of each unit that the workload holds, and roll them up."""
    now = timezone.now()
    minute = now.replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago)
    for held in Allocation.objects.filter(workload=work):
        write_samples(held.unit, minute + timedelta(seconds=30), 3)
    roll_up_due_buckets(now)


@pytest.mark.long
def test_the_chart_of_a_running_job_shows_new_figures(
    world: World, live_server: Any, browser: Browser
) -> None:
    job = run_job(world, world.vision, "fit", host="alpha", gpus=[0, 1])
    for minutes_ago in (20, 10):
        measure_minute(job, minutes_ago)
    page = sign_in(browser, live_server, world.vision.member.username)
    page.goto(f"{live_server.url}{reverse('job', args=[job.public_id])}?tab=use")
    expect(page.locator(".plot-run .main-svg").first).to_be_visible()
    chart = "document.querySelector('[data-figure=figure-run]')"
    values = f"{chart}.data[0].z[0].filter((value) => value !== null).length"
    assert page.evaluate(values) == 2
    measure_minute(job, 5)
    page.evaluate(
        "htmx.ajax('GET', location.pathname + '?tab=use&part=chart',"
        " {target: '#use-data', swap: 'outerHTML'})"
    )
    wait_until(lambda: page.evaluate(values) == 3)


@pytest.mark.long
def test_after_back_a_filter_shows_the_text_of_its_address(
    world: World, live_server: Any, browser: Browser
) -> None:
    make_waiting(world, world.vision, "storm")
    page = sign_in(browser, live_server, world.vision.member.username)
    page.goto(f"{live_server.url}{reverse('jobs')}")
    field = page.locator("form[data-autosend] input[name=find]")
    field.fill("nothing-like-this")
    field.press("Enter")
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("link", name="storm")).to_be_visible()
    expect(field).to_have_value("")


@pytest.mark.long
@pytest.mark.usefixtures("charged")
def test_pages_of_roles_fit_their_windows_and_folded_rules_are_short(
    world: World, live_server: Any, browser: Browser
) -> None:
    team = reverse("team", args=[world.vision.team.slug])
    pages = {
        world.operator: [reverse(name) for name in ("home", "fleet", "health-rules", "notifications")],
        world.finance: [reverse("home")],
        world.vision.lead: [team, reverse("jobs"), reverse("audit")],
    }
    for user, addresses in pages.items():
        page = sign_in(browser, live_server, user.username)
        for width in (390, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 900})
            for address in addresses:
                page.goto(f"{live_server.url}{address}")
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (address, width)
                assert page.evaluate(CUT) == [], (address, width)
                if address == reverse("health-rules"):
                    assert page.evaluate("document.documentElement.scrollHeight") < 2000


@pytest.mark.long
def test_enter_opens_the_best_match_of_the_search_even_before_the_answer(
    world: World, live_server: Any, browser: Browser
) -> None:
    page = sign_in(browser, live_server, world.vision.member.username)
    page.keyboard.press("Control+k")
    page.keyboard.type("password")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("password")
    assert page.url.endswith(reverse("account_change_password"))
