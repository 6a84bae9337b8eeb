"""Test the pages of use and costs in a browser, on a demo with its simulated past.

Each month of the past adds up on every page, and the previous month is closed by two people.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.demo_in_browser import Story, eventually, running_story

pytestmark = [
    pytest.mark.browser,
    pytest.mark.site,
    pytest.mark.long,
    pytest.mark.timeout(420),
]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with running_story(tmp_path_factory.mktemp("use-and-costs") / "demo", history=True) as story:
        yield story


BY = "section[aria-labelledby=by]"
CHARTS = (
    "Use over time",
    "Use by team",
    "Now, GPU by GPU",
    "When GPUs are wanted",
    "High utilisation is not the same as work",
    "When GPUs work",
    "Pooled or dedicated",
    "How long people wait",
)


def test_each_utilisation_chart_has_a_table_and_a_csv(story: Story) -> None:
    operator = story["operator"]
    eventually(lambda: (story.demo.folder / "history.done").exists(), 300, "the simulated past is loaded")
    page = operator.go("/utilisation/?period=30d")
    expect(page.locator("main")).to_contain_text("includes simulated history")
    expect(page.locator("main")).to_contain_text(re.compile(r"Saved by pooling\s*[\d.,]+ GPUs"))
    now = page.locator(".panel", has_text="Now, GPU by GPU")
    now.scroll_into_view_if_needed()
    expect(now).to_contain_text(re.compile(r"h\d"), timeout=30_000)  # charts are drawn when they are in view
    for table in ("waterfall", "league"):
        expect(page.locator(f"#{table} tbody tr").nth(1)).to_be_visible()
    for title in CHARTS:
        panel = page.locator("section.panel").filter(has=page.get_by_role("heading", name=title, exact=True))
        panel.scroll_into_view_if_needed()
        expect(panel.locator(".js-plotly-plot .main-svg").first).to_be_visible(timeout=30_000)
        answer = page.request.get(
            urljoin(page.url, str(panel.get_by_role("link", name="CSV", exact=True).get_attribute("href")))
        )
        lines = answer.text().splitlines()
        assert (
            answer.status == 200 and answer.headers["content-type"].startswith("text/csv") and len(lines) > 1
        ), title
        panel.get_by_text("Table", exact=True).click()
        expect(panel.get_by_role("table").first).to_be_visible()
        expect(panel.get_by_role("row")).not_to_have_count(1)
    operator.check()
    for by in ("Project", "GPU"):
        page.get_by_role("navigation", name="Use by").get_by_role("link", name=by, exact=True).click()
        expect(page.get_by_role("heading", name=re.compile(f"Use by {by}", re.I))).to_be_visible()
    fleet = operator.go("/fleet/")
    expect(fleet.locator("main")).to_contain_text("simulated")
    operator.check()


def test_the_month_adds_up_can_be_downloaded_and_is_closed_permanently(story: Story) -> None:
    finance = story["finance"]
    page = finance.go("/chargeback/")
    expect(page.get_by_role("heading", name="Does it add up?")).to_be_visible()
    assert adds_up(page)
    finance.check()
    page.get_by_role("link", name=re.compile(r"^[A-Z][a-z]+ 20\d\d$")).first.click()  # the previous month
    page.wait_for_url("**month=**")
    month = page.url.split("month=")[1][:7]
    assert adds_up(page)
    total = charged_in_total(page)
    for column in ("Cost centre", "Team", "Project", "Workload type"):
        page.get_by_role("link", name=column, exact=True).first.click()
        expect(page.get_by_role("columnheader", name=f"{column} and below")).to_be_visible()
        assert charged_in_total(page) == total
        table = page.request.get(page.url + "&format=csv")
        assert table.status == 200 and len(table.text().splitlines()) > 2
    # Open the first row of each level: the rows below it sum to it. Then open the lines of a workload.
    page.goto(f"{story.demo.url}/chargeback/?month={month}")
    for depth in range(4):
        row = page.locator(f"{BY} tr[data-depth='{depth}'][data-path]").first
        above = amount(row.locator("td.col-charged").inner_text())
        row.locator("a.twisty").click()
        expect(row.locator("a.twisty")).to_have_attribute("aria-expanded", "true")
        below = page.locator(f"{BY} tr[data-depth='{depth + 1}'][data-path] td.col-charged").all_inner_texts()
        if page.locator(f"{BY} tr.pager-row").count() == 0:
            assert sum(map(amount, below), Decimal(0)) == above
    finance.check()
    page.locator(f"{BY} tr[data-depth='4'] td.col-name a").first.click()
    expect(page.get_by_role("heading", name="Charge lines")).to_be_visible()
    finance.check()

    statement = page.request.get(f"{story.demo.url}/chargeback/{month}/export/?kind=statement")
    assert statement.status == 200 and "CC-4100" in statement.text()
    page.goto(f"{story.demo.url}/chargeback/?month={month}")
    page.get_by_role("link", name=re.compile("^Close ")).click()
    page.get_by_role("button", name="Rehearse").click()
    expect(page.locator("main")).to_contain_text("every line agrees with the facts", timeout=60_000)
    finance.check()
    page.get_by_role("button", name="Propose to close it").click()
    expect(page.get_by_text(re.compile("is proposed"))).to_be_visible(timeout=60_000)
    expect(page.get_by_role("button", name="Close it for good")).to_have_count(0)
    finance.check()
    auditor = story["auditor"]
    other = auditor.go(f"/chargeback/{month}/close/")
    other.get_by_role("button", name="Close it for good").click()
    expect(other.get_by_text(re.compile("is closed and cannot"))).to_be_visible(timeout=60_000)
    other.get_by_role("link", name="Its statements").click()
    other.get_by_role("link", name=f"{month}/CC-4100/1").click()
    expect(other.locator("main")).to_contain_text("Statement of GPU use")
    auditor.check()
    closed = page.request.get(f"{story.demo.url}/chargeback/{month}/export/?kind=statement")
    rows = [text.rpartition("# rows")[0] for text in (statement.text(), closed.text())]
    assert rows[0].replace(",provisional,", ",closed,") == rows[1]
    # A new rate from the month's first day is rejected, and the statement stays the same.
    page.goto(f"{story.demo.url}/chargeback/rates/")
    finance.check()
    set_price = page.get_by_role("button", name="Set the price")
    form = page.locator("form").filter(has=set_price)
    form.get_by_label("From").fill(f"{month}-01T00:00")
    form.get_by_label("Price").fill("99")
    form.get_by_label("Owner's cost").fill("98")
    set_price.click()
    expect(page.locator("main")).to_contain_text("is already charged until")
    finance.assert_form_was_rejected()
    finance.check()
    again = page.request.get(f"{story.demo.url}/chargeback/{month}/export/?kind=statement")
    assert again.body() == closed.body()
    page.goto(f"{story.demo.url}/chargeback/?month={month}")
    expect(page.locator("main")).to_contain_text("Closed")
    assert adds_up(page) and page.get_by_role("link", name=re.compile("^Close ")).count() == 0
    finance.check()


def charged_in_total(page: Page) -> Decimal:
    """Return the charged total of the table. Asserts that its rows sum to it."""
    rows = page.locator(BY + " tbody td.col-charged").all_inner_texts()
    total = amount(page.locator(BY + " tr.total td.col-charged").inner_text())
    assert sum(map(amount, rows), Decimal(0)) == total
    return total


def amount(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("−", "-").strip())


def adds_up(page: Page) -> bool:
    """Return True if the amounts of the conservation line add up."""
    expect(page.locator(".equation .big b").nth(4)).to_be_visible()
    expect(page.locator(".check-result")).to_contain_text("0.00")
    charged, *others, cost = map(amount, page.locator(".equation .big b").all_inner_texts())
    *operators, equals = page.locator(".equation .operator").all_inner_texts()
    assert equals == "=" and set(operators) <= {"+", "−"}
    signed = [each if sign == "+" else -each for sign, each in zip(operators, others, strict=True)]
    return cost > 0 and charged + sum(signed) == cost


def test_no_page_of_use_and_costs_requested_another_host_or_logged_an_error(story: Story) -> None:
    for person in story.people.values():
        assert (person.username, person.other_hosts, person.errors) == (person.username, [], [])
