"""Test in a browser that the tree of charges opens in place, obeys the keyboard, fits a phone and prints, and
that the chart of charges names the day that it opens.

The short part has the test that opens and closes rows.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import Browser, Page, expect

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
TREE = "section[aria-labelledby=by]"
ROW = f"{TREE} tbody tr"


@pytest.fixture
def page(world: World, charged: Workload, live_server: Any, browser: Browser) -> Page:
    """Return the page of January, as finance sees it."""
    page = sign_in(browser, live_server, world.finance.username)
    page.goto(f"{live_server.url}{reverse('chargeback')}?month={MONTH}")
    return page


def test_rows_open_and_close_in_place_and_the_address_remembers_them(page: Page) -> None:
    page.evaluate("window.isTheSamePage = true")
    first = page.locator(f"{ROW}[data-path='CC-vision'] a.twisty")
    first.click()
    team = page.locator(f"{ROW}[data-depth='1'] a.twisty")
    expect(team).to_have_count(1)
    expect(first).to_have_attribute("aria-expanded", "true")
    expect(first).to_be_focused()
    team.click()
    expect(page.locator(f"{ROW}[data-depth='2']")).to_have_count(1)
    assert page.url.count("open=") == 2
    file = page.request.get(page.locator("a[data-tree-file]").evaluate("link => link.href"))
    assert [line.split(",")[3] for line in file.text().splitlines()[1:5]] == ["1", "1", "2", "3"]
    assert page.evaluate("window.isTheSamePage")
    shown = page.locator(ROW).all_inner_texts()
    page.reload()
    assert page.locator(ROW).all_inner_texts() == shown
    first.click()
    expect(page.locator(f"{ROW}[data-depth='1']")).to_have_count(0)
    assert "open=" not in page.url


@pytest.mark.long
def test_the_keyboard_opens_a_level_and_moves_between_rows(page: Page) -> None:
    first = page.locator(f"{ROW}[data-path='CC-vision'] a.twisty")
    first.focus()
    page.keyboard.press("ArrowRight")
    team = page.locator(f"{ROW}[data-depth='1'] a.twisty")
    expect(team).to_have_count(1)
    page.keyboard.press("ArrowDown")
    expect(team).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(first).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(team).to_have_count(0)


@pytest.mark.long
def test_a_heading_sorts_and_a_search_opens_the_way_to_a_workload(page: Page) -> None:
    page.locator(f"{TREE} th.col-name a").click()
    expect(page.locator(f"{TREE} th.col-name")).to_have_attribute("aria-sort", re.compile("scending"))
    page.get_by_label("Search the rows").fill("fit")
    page.keyboard.press("Enter")
    expect(page.locator(f"{ROW}.selected")).to_contain_text("fit")
    expect(page.locator(ROW)).to_have_count(5)
    page.get_by_role("link", name="Show all").click()
    expect(page.locator(f"{ROW}.selected")).to_have_count(0)


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_tree_fits_a_phone_and_keeps_name_charge_and_budget(page: Page, theme: Any) -> None:
    page.emulate_media(color_scheme=theme)
    for width in (390, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        page.locator(f"{ROW}[data-path='CC-vision'] a.twisty").click()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        expect(page.locator(f"{TREE} th.col-charged")).to_be_visible()
        expect(page.locator(f"{TREE} th.col-used")).to_be_visible(visible=width > 390)


def test_a_column_is_hidden_in_all_rows_and_stays_hidden(page: Page) -> None:
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Idle", exact=True).uncheck()
    page.keyboard.press("Escape")
    page.locator(f"{ROW}[data-path='CC-vision'] a.twisty").click()
    expect(page.locator(f"{ROW}[data-depth='1'] td.col-used")).to_be_visible()
    expect(page.locator(f"{ROW}[data-depth='1'] td.col-idle")).to_be_hidden()
    page.reload()
    expect(page.locator(f"{TREE} th.col-idle")).to_be_hidden()
    expect(page.locator(f"{TREE} th.col-used")).to_be_visible()


@pytest.mark.long
def test_the_menu_of_exports_opens_inside_the_window(page: Page) -> None:
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.get_by_role("button", name="Export").click()
        box = page.locator("#exports").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
        expect(page.locator("#exports")).to_contain_text("provisional")
        page.keyboard.press("Escape")


@pytest.mark.long
def test_the_printed_page_has_a_head_and_numbered_landscape_pages(page: Page) -> None:
    page.emulate_media(media="print")
    head = page.locator(".print-head")
    expect(head).to_be_visible()
    expect(head).to_contain_text("Chargeback January 2026")
    expect(head).to_contain_text("As finance you see the charges of every team.")
    for hidden in (".rail", ".head", f"{TREE} form"):
        expect(page.locator(hidden)).to_be_hidden()
    printed = page.pdf(prefer_css_page_size=True)
    (size,) = set(re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed))
    assert float(size[0]) > float(size[1])
    rules = page.evaluate(
        "[...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).map((rule) => rule.cssText).join()"
    )
    assert 'counter(page) " of " counter(pages)' in rules


def test_the_chart_names_the_day_whose_charges_a_click_opens(page: Page) -> None:
    chart = page.locator("#chart-spend .plot")
    chart.scroll_into_view_if_needed()
    expect(page.locator("#chart-spend .plot[data-drawn] .main-svg").first).to_be_visible()
    place = chart.evaluate(
        """plot => {
            const { xaxis, yaxis } = plot._fullLayout, box = plot.getBoundingClientRect();
            return [box.left + xaxis._offset + xaxis.l2p(10.3), box.top + yaxis._offset + yaxis._length / 2];
        }"""
    )
    page.mouse.move(*place)
    expect(page.locator("#chart-spend .hoverlayer")).to_contain_text("end of day 10")
    with page.expect_navigation():
        page.mouse.click(*place)
    assert "day=2026-01-10" in page.url
