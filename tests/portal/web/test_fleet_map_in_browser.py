"""Test in a browser how the map of the fleet leads to samples, and how a drag sets the period."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from django.db import connection
from django.urls import reverse
from playwright.sync_api import Browser, Page, expect

from scheduler.models import Workload
from tests.portal.web.test_charts_in_browser import drag, drawn
from tests.portal.web.test_pages_in_browser import browser, chromium, sign_in
from tests.telemetry.rows import at, hold, workload
from tests.telemetry.test_selectors import create_hour_of_use
from tests.world import World, units_of

__all__ = ["browser", "chromium"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("pages-in-browser"),
]
PERIOD = "start=2026-03-02&end=2026-03-03"


@pytest.fixture
def page(world: World, live_server: Any, browser: Browser) -> Iterator[Page]:
    """Return the page of an operator in a world in which GPU 0 of alpha was used from 9 to 15."""
    unit = units_of(world.hosts["alpha"])[0]
    allocation = hold(workload(world, world.vision), unit, at(9), at(15), end_code="finished")
    for hour in range(9, 15):
        create_hour_of_use(allocation, hour)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_sample (unit_id, allocation_id, ts, utilisation, power_w)"
            " SELECT %s, %s, at, 50, 300 FROM generate_series(%s::timestamptz, %s, '10 seconds') AS at",
            [unit.pk, allocation.pk, at(9), at(15) - dt.timedelta(seconds=1)],
        )
    with mock.patch("portal.reads.utilisation.fleet_map.cache_get_many", return_value={}):
        yield sign_in(browser, live_server, world.operator.username)


def click_in(page: Page, name: str, share_x: float, share_y: float) -> None:
    """Click a chart at a share of the width and height of its drawing area."""
    area = drawn(page, name).locator(".nsewdrag").first
    box = area.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * share_x, box["y"] + box["height"] * share_y
    page.mouse.move(x - 2, y)
    page.mouse.move(x, y)
    expect(page.locator(f"#chart-{name} .hovertext").first).to_be_visible()
    with page.expect_navigation():
        page.mouse.click(x, y)


def test_clicks_lead_from_the_fleet_to_the_samples_of_a_run_and_links_back(
    page: Page, live_server: Any
) -> None:
    page.goto(f"{live_server.url}{reverse('utilisation')}?{PERIOD}")
    rows = page.locator("#figure-fleet").evaluate("script => JSON.parse(script.textContent).data[0].y")
    click_in(page, "fleet", 0.5, (rows.index("alpha") + 0.5) / len(rows))
    assert "host=alpha" in page.url
    gpus = page.locator("#figure-host").evaluate("script => JSON.parse(script.textContent).data[0].y")
    click_in(page, "host", 0.5, 0.5 / len(gpus))
    assert "gpu=0" in page.url
    with page.expect_navigation():
        drawn(page, "gpu").locator(".barlayer .point path").first.click(force=True)
    assert f"run={Workload.objects.get().public_id}" in page.url
    expect(page.get_by_role("heading", name="Utilisation")).to_be_visible()
    page.get_by_role("navigation", name="Levels").get_by_role("link", name="alpha").click()
    expect(page.get_by_role("heading", name="GPUs of alpha, hour by hour")).to_be_visible()
    assert "start=2026-03-02" in page.url


def test_a_drag_on_any_time_chart_sets_the_period_of_its_page(page: Page, live_server: Any) -> None:
    fleet, run = reverse("utilisation-fleet"), Workload.objects.get().public_id
    for path, name in (
        (f"{reverse('utilisation')}?{PERIOD}", "use-over-time"),
        (f"{reverse('utilisation')}?{PERIOD}", "fleet"),
        (f"{fleet}?{PERIOD}", "fleet"),
        (f"{fleet}?{PERIOD}&host=alpha", "host"),
        (f"{fleet}?{PERIOD}&host=alpha&gpu=0", "gpu"),
        (f"{fleet}?{PERIOD}&host=alpha&gpu=0&run={run}", "samples-1"),
    ):
        page.goto(f"{live_server.url}{path}")
        chart = drawn(page, name)
        with page.expect_navigation():
            drag(page, chart.locator(".nsewdrag").first, 0.4, 0.7)
        found = re.search(r"start=([^&]+)&end=([^&#]+)", page.url)
        assert found is not None, path
        start, end = (part.replace("%3A", ":") for part in found.groups())
        assert "2026-03-02T08:00" <= start < end <= "2026-03-02T18:00", (path, start, end)
        assert page.url.split("?")[0].endswith(path.split("?")[0])


def test_every_chart_of_past_times_can_choose_a_period(page: Page, live_server: Any) -> None:
    page.goto(f"{live_server.url}{reverse('utilisation')}?{PERIOD}")
    # The days of the forecast are in the future, and no period is.
    figures = page.locator("script[id^=figure-]:not(#figure-demand-forecast)").evaluate_all(
        "all => all.map((script) => JSON.parse(script.textContent).layout)"
    )
    timed = [layout for layout in figures if layout.get("xaxis", {}).get("type") == "date"]
    assert len(timed) >= 2 and all(layout["meta"]["period"] for layout in timed)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_levels_fit_each_width(page: Page, live_server: Any, theme: Any) -> None:
    page.emulate_media(color_scheme=theme)
    run = Workload.objects.get().public_id
    for level in ("", "&host=alpha", "&host=alpha&gpu=0", f"&host=alpha&gpu=0&run={run}"):
        for width in (390, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(f"{live_server.url}{reverse('utilisation-fleet')}?{PERIOD}{level}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
