"""Test in a browser how charts load, zoom, open pages and save images.

The long part covers all charts and widths.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import Browser, Locator, Page, Request, expect

from scheduler.models import Workload
from tests.portal.charged_january import MONTH, charged
from tests.portal.web.test_pages_in_browser import browser, chromium, sign_in
from tests.world import World

__all__ = ["browser", "charged", "chromium"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("pages-in-browser"),
]
JANUARY = "start=2026-01-03&end=2026-01-06"
DRAWN = ".plot[data-drawn] .main-svg"


@pytest.fixture
def page(world: World, charged: Workload, live_server: Any, browser: Browser) -> Page:
    """Return the utilisation page of three days in January, as an operator sees it."""
    page = sign_in(browser, live_server, world.operator.username)
    page.goto(f"{live_server.url}{reverse('utilisation')}?{JANUARY}")
    return page


def panel(page: Page, name: str) -> Locator:
    return page.locator(f"#chart-{name}")


def drawn(page: Page, name: str) -> Locator:
    """Scroll to a chart and wait until it is drawn. Return its figure."""
    panel(page, name).scroll_into_view_if_needed()
    expect(panel(page, name).locator(DRAWN).first).to_be_visible()
    return panel(page, name).locator(".plot")


def test_a_chart_is_drawn_when_it_comes_into_view(page: Page) -> None:
    drawn(page, "use-over-time")
    assert panel(page, "now").locator(".plot[data-drawn]").count() == 0
    drawn(page, "now")


def test_plotly_loads_after_the_first_paint(page: Page) -> None:
    requested: list[Request] = []
    page.on("request", lambda request: requested.append(request))
    page.reload()
    drawn(page, "use-over-time")
    # An earlier page may have requested the library too. The last request belongs to the present page.
    library = [each for each in requested if "plotly" in each.url][-1]
    began = library.timing["startTime"] / 1000
    paint = page.evaluate(
        "performance.timeOrigin + performance.getEntriesByName('first-contentful-paint')[0].startTime"
    )
    assert began >= paint / 1000
    assert page.locator("script[src*=plotly]").get_attribute("src") is not None
    assert 'src="/static/plotly' not in page.request.get(page.url).text()


def test_the_address_keeps_the_chosen_table_of_a_chart_when_filters_change(page: Page) -> None:
    panel(page, "use-by").get_by_role("button", name="Table").click()
    expect(panel(page, "use-by").get_by_role("table")).to_be_visible()
    assert page.url.endswith("#table=use-by")
    page.reload()
    expect(panel(page, "use-by").get_by_role("table")).to_be_visible()
    expect(panel(page, "waits").get_by_role("table")).to_be_hidden()
    page.get_by_role("navigation", name="Use by").get_by_role("link", name="Project").click()
    expect(page.get_by_role("heading", name="Use by project")).to_be_visible()
    expect(panel(page, "use-by").get_by_role("table")).to_be_visible()
    panel(page, "use-by").get_by_role("button", name="Chart").click()
    assert "#" not in page.url


def drag(page: Page, area: Locator, from_share: float, to_share: float) -> None:
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * from_share, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * to_share, middle, steps=8)
    page.mouse.up()


def test_a_drag_on_a_time_chart_chooses_the_period_of_the_whole_page(page: Page) -> None:
    chart = drawn(page, "use-over-time")
    with page.expect_navigation():
        drag(page, chart.locator(".nsewdrag").first, 0.34, 0.6)
    found = re.search(r"start=([^&]+)&end=([^&#]+)", page.url)
    assert found is not None
    start, end = (part.replace("%3A", ":") for part in found.groups())
    assert "2026-01-04T00:00" <= start < "2026-01-04T06:00"
    assert "2026-01-04T12:00" < end <= "2026-01-05T00:00"
    expect(page.locator(".head")).to_contain_text("Sun 4 Jan")


def test_a_click_on_a_bar_opens_the_rows_behind_it(page: Page) -> None:
    chart = drawn(page, "use-by")
    # Nothing was measured in this month, so the other bars are empty.
    with page.expect_navigation():
        chart.locator(".barlayer .trace").nth(2).locator(".point path").first.click(force=True)
    assert "team=vision" in page.url and "by=project" in page.url
    expect(page.get_by_role("heading", name="Use by project")).to_be_visible()


def test_an_image_of_a_chart_is_saved(page: Page) -> None:
    drawn(page, "use-by")
    with page.expect_download() as download:
        panel(page, "use-by").get_by_role("button", name="PNG").click()
    assert download.value.suggested_filename == "use-by.png"
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["waterfall", "league"])
def test_a_table_of_bars_is_saved_as_an_image(page: Page, name: str) -> None:
    with page.expect_download() as download:
        page.locator(f"#{name}").get_by_role("button", name="PNG").click()
    assert download.value.suggested_filename == f"{name}.png"
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


def test_a_page_without_the_library_shows_the_tables(page: Page) -> None:
    page.route("**/plotly*", lambda route: route.abort())
    page.reload()
    panel(page, "use-over-time").scroll_into_view_if_needed()
    expect(panel(page, "use-over-time").get_by_role("table")).to_be_visible()


def test_a_swipe_on_a_touch_screen_scrolls_the_page_and_does_not_zoom(
    world: World, charged: Workload, live_server: Any, browser: Browser
) -> None:
    phone = sign_in(browser, live_server, world.operator.username, has_touch=True, is_mobile=True)
    phone.goto(f"{live_server.url}{reverse('utilisation')}?{JANUARY}")
    phone.set_viewport_size({"width": 390, "height": 844})
    chart = drawn(phone, "use-over-time")
    assert chart.evaluate("place => place.layout.dragmode") is False
    before = chart.evaluate("place => [...place.layout.xaxis.range]")
    address, place = phone.url, phone.evaluate("scrollY")
    box = chart.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    touch = phone.context.new_cdp_session(phone)
    for number in range(11):
        kind, point = "touchMove" if number else "touchStart", {"x": x, "y": y - 20 * number}
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [point]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    phone.wait_for_function("place => scrollY > place + 100", arg=place)
    assert chart.evaluate("place => [...place.layout.xaxis.range]") == before and phone.url == address


@pytest.mark.long
def test_every_tooltip_has_a_unit_and_each_bar_has_its_own_tooltip(page: Page) -> None:
    names = page.locator(".chart-panel").evaluate_all("all => all.map(each => each.id.slice(6))")
    for name in names:
        chart = drawn(page, name)
        bars = chart.locator(".barlayer .point path")
        boxes = bars.evaluate_all("all => all.map((bar) => [bar.getBBox().width, bar.getBBox().height])")
        for number in [number for number, box in enumerate(boxes) if min(box) > 4][:3]:
            bars.nth(number).hover(force=True)
            label = chart.locator(".hovertext")
            expect(label).to_have_count(1)
            assert re.search("GPUs|GPU-hours|wait at most", label.text_content() or ""), name


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_fits_each_width_and_has_more_than_one_column_on_wide_screens(
    page: Page, theme: Any
) -> None:
    page.emulate_media(color_scheme=theme)
    for width, columns in ((390, 1), (1280, 2), (1920, 2)):
        page.set_viewport_size({"width": width, "height": 900})
        page.reload()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        lefts = page.locator(".board > *").evaluate_all(
            "all => [...new Set(all.map(each => Math.round(each.getBoundingClientRect().left)))]"
        )
        assert len(lefts) >= columns, width


@pytest.mark.long
def test_the_address_keeps_the_zoom_of_a_chart_that_has_its_own_time_axis(
    world: World, live_server: Any, charged: Workload, browser: Browser
) -> None:
    page = sign_in(browser, live_server, world.finance.username)
    page.goto(f"{live_server.url}{reverse('chargeback')}?month={MONTH}#table=spend")
    expect(panel(page, "spend").get_by_role("table")).to_be_visible()
