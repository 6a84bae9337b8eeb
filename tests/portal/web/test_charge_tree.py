"""Test the tree of charges: its sums for each role, its levels, its order, its search and its pages."""

from __future__ import annotations

import csv
import io
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money import charge_tree as reads
from portal.reads.money import chargeback
from portal.reads.money.charge_tree import TreeLevel, TreeNode, TreeQuery, charge_tree, tree_levels
from portal.web.money.charges import lines as charge_lines_page
from portal.wording.pages.money import charge_tree_texts
from scheduler.models import Workload
from telemetry.models import Budget, Charge, ChargeCell
from telemetry.money.closing.statement_months import load_statement_months
from telemetry.reads.chargeback import charge_lines
from telemetry.reads.charges_before import charges_before, compared_day_count, is_compared
from tests.portal.charged_january import MONTH, charged
from tests.seeds import first_cases
from tests.telemetry.conftest import rates
from tests.telemetry.test_cents import late_fact_about_march
from tests.world import World, world_fixture

__all__ = ["charged", "rates"]
pytestmark = pytest.mark.django_db
JANUARY, FEBRUARY = date(2026, 1, 1), date(2026, 2, 1)
LEVELS = ("cost_centre", "team", "project", "user", "workload")


def get(user: User, name: str = "chargeback", **query: Any) -> Any:
    client = Client()
    client.force_login(user)
    return client.get(reverse(name), {"month": MONTH, **query})


def job_path(world: World, charged: Workload) -> tuple[Any, ...]:
    return (
        "CC-vision",
        world.vision.team.pk,
        world.vision.project.pk,
        world.vision.member.pk,
        charged.pk,
    )


def texts(path: tuple[Any, ...]) -> str:
    return "/".join(str(key) for key in path)


def whole_tree(user: User, by: str = "cost_centre", **where: Any) -> TreeLevel:
    """Return the tree with each row open."""
    levels = tree_levels(by, where)
    opened: dict[Any, int] = {(): 0}
    for _ in levels:
        query = TreeQuery(levels=levels, where=where, opened=opened)
        tree = charge_tree(user, JANUARY, query, {}, timezone.now())
        opened |= {node.path: 0 for node in nodes_of(tree.root) if len(node.path) < len(levels)}
    return tree.root


def nodes_of(level: TreeLevel) -> list[TreeNode]:
    found = []
    for node in level.nodes:
        found += [node, *(nodes_of(node.below) if node.below else [])]
    return found


def assert_adds_up(level: TreeLevel) -> None:
    parts = ("charged", "used", "idle", "unmeasured", "reserved_unused", "idle_share")
    for node in level.nodes:
        if node.below:
            for part in parts:
                below = sum(getattr(each.group, part) for each in node.below.nodes)
                assert getattr(node.group, part) == below, (node.path, part)
            hours = sum(each.group.gpu_hours for each in node.below.nodes)
            assert node.group.gpu_hours == pytest.approx(hours)
            assert_adds_up(node.below)


@pytest.mark.parametrize("role", ["finance", "auditor", "lead", "member"])
@pytest.mark.parametrize(
    "by", ["cost_centre", *(pytest.param(by, marks=pytest.mark.long) for by in ("team", "type", "bucket"))]
)
def test_a_row_equals_the_sum_of_the_rows_below_it_for_every_role(
    world: World, charged: Workload, role: str, by: str
) -> None:
    root = whole_tree(world.people[role], by)
    assert len(nodes_of(root)) > 3
    assert_adds_up(root)


def test_the_page_opens_rows_from_its_address_and_marks_them(world: World, charged: Workload) -> None:
    path = job_path(world, charged)
    answer = get(world.finance, open=texts(path[:4]))
    page = answer.content.decode()
    assert [row["depth"] for row in answer.context["rows"] if row["path"] == texts(path)] == [4]
    assert page.split('<table class="tree">')[1].split("</table>")[0].count('aria-expanded="true"') == 4
    assert "fit" in page and world.vision.member.username in page


def test_the_rows_below_a_row_are_the_same_in_place_and_on_the_page(world: World, charged: Workload) -> None:
    path = job_path(world, charged)[:2]
    page = get(world.finance, open=texts(path))
    rows = get(world.finance, "charge-tree-rows", open=texts(path))
    below = [row for row in page.context["rows"] if row["depth"] == 2]
    assert [(row["path"], row["group"]) for row in below] == [
        (row["path"], row["group"]) for row in rows.context["rows"]
    ]
    assert "<html" not in rows.content.decode()


def test_one_level_takes_the_same_number_of_queries_however_many_rows_are_open(
    world: World, charged: Workload
) -> None:
    client = Client()
    client.force_login(world.finance)
    counts = []
    for opened in (["CC-vision"], ["CC-vision"], ["CC-vision", "CC-static"]):  # the first one fills caches
        with CaptureQueriesContext(connection) as queries:
            client.get(reverse("chargeback"), {"month": MONTH, "open": opened})
        counts.append(len(queries))
    assert counts[1] == counts[2]


# The order of these columns is the order of one number of the rows, as that of "charged".
SORTED_LIKE_CHARGED = ("used", "idle", "reserved_unused", "unmeasured", "since", "budget", "gpu_hours")


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(column, marks=[pytest.mark.long] if column in SORTED_LIKE_CHARGED else [])
        for column in reads.SORT_COLUMNS
    ],
)
def test_each_column_sorts_the_rows_of_a_level_and_says_so(
    world: World, charged: Workload, column: str
) -> None:
    up, down = (get(world.finance, sort=sign + column) for sign in ("", "-"))
    orders = [[row["path"] for row in each.context["rows"]] for each in (up, down)]
    assert sorted(orders[0]) == sorted(orders[1]) and len(orders[0]) == 2
    if column in ("name", "charged", "gpu_hours"):
        assert orders[0] == orders[1][::-1]
    if column not in ("idle_share", "adjustment"):  # these columns are shown if one row has an amount
        assert 'aria-sort="ascending"' in up.content.decode()
        assert 'aria-sort="descending"' in down.content.decode()


@pytest.mark.parametrize(
    "text",
    ["FIT", "member", *(pytest.param(text, marks=pytest.mark.long) for text in ("fit", "vision", "cc-vis"))],
)
def test_a_search_opens_the_way_to_each_row_that_it_finds(world: World, charged: Workload, text: str) -> None:
    if text == "member":
        text = world.vision.member.username[1:]
    answer = get(world.finance, q=text)
    found = [row for row in answer.context["rows"] if row["node"].is_found]
    assert found and all(text.lower() in (row["code"] + row["name"]).lower() for row in found)
    if text.lower() == "fit":
        assert [row["path"] for row in answer.context["rows"]] == [
            texts(job_path(world, charged)[:size]) for size in range(1, 6)
        ]
    assert answer.context["table"].charged == get(world.finance).context["table"].charged


def test_a_search_finds_only_what_the_viewer_may_see(world: World, charged: Workload) -> None:
    assert get(world.vision.member, q="fit").context["rows"]
    answer = get(world.language.lead, q="fit")
    assert not answer.context["rows"] and "No row with charges contains" in answer.content.decode()


def test_a_long_level_is_shown_in_pages(
    world: World, charged: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (reads, __import__("portal.web.money.charges.tree_rows", fromlist=["x"])):
        monkeypatch.setattr(module, "ROWS_PER_LEVEL", 1)
    first, second = get(world.finance), get(world.finance, open="@1")
    assert [row["kind"] for row in first.context["rows"]] == ["group", "pager"]
    assert "1 to 1 of 2" in first.content.decode() and "2 to 2 of 2" in second.content.decode()
    assert first.context["rows"][0]["path"] != second.context["rows"][0]["path"]
    assert "open=%401" in first.context["rows"][1]["next"]


def test_the_file_has_the_open_rows_of_the_page(
    world: World, charged: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has all rows of a long level, also those on its other pages."""
    path, query = job_path(world, charged), {"sort": "name"}
    page = get(world.finance, open=texts(path[:2]), **query)
    monkeypatch.setattr(reads, "ROWS_PER_LEVEL", 1)
    file = get(world.finance, open=texts(path[:2]), format="csv", **query)
    *rows, total, _ = csv.DictReader(io.StringIO(b"".join(file).decode()))
    shown = [row for row in page.context["rows"] if row["kind"] == "group"]
    assert [(int(row["level"]) - 1, Decimal(row["charged"])) for row in rows] == [
        (row["depth"], row["group"].charged) for row in shown
    ]
    assert {row["level"] for row in rows} == {"1", "2", "3"}
    team, project = world.vision.team.name, world.vision.project.name
    assert [row["project"] for row in rows if row["team"] == team] == ["", project]
    first_level = sum(Decimal(row["charged"]) for row in rows if row["level"] == "1")
    assert total["level"] == "0" and Decimal(total["charged"]) == first_level


def test_the_file_of_a_search_has_the_found_rows(world: World, charged: Workload) -> None:
    file = get(world.finance, q="fit", format="csv")
    *rows, _, _ = csv.DictReader(io.StringIO(b"".join(file).decode()))
    assert [row["level"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[-1]["workload"] == "fit"


@pytest.mark.parametrize(
    ("name", "value"),
    first_cases(
        2,
        [
            ("open", "CC-nowhere"),
            ("open", "CC-vision/x"),
            ("open", "CC-vision/91000001"),
            ("open", "CC-vision@x"),
            ("open", "1/2/3/4/5/6"),
            ("sort", "size"),
            ("by", "planet"),
            ("q", "x" * 81),
        ],
    ),
)
def test_an_unknown_part_of_the_address_is_refused(
    world: World, charged: Workload, name: str, value: str
) -> None:
    for page in ("chargeback", "charge-tree-rows"):
        answer = get(world.finance, page, **{name: value})
        assert answer.status_code == 404
        assert f"{name} is '" in str(answer.context["message"]) and "allowed: " in str(
            answer.context["message"]
        )


def test_a_workload_has_no_rows_below_it(world: World, charged: Workload) -> None:
    assert get(world.finance, "charge-tree-rows", workload=charged.pk).status_code == 404


def test_a_row_that_the_viewer_may_not_see_answers_like_one_that_does_not_exist(
    world: World, charged: Workload
) -> None:
    hidden, missing = (
        str(get(world.language.lead, open=text).context["message"]) for text in ("CC-vision", "CC-visioX")
    )
    assert hidden.replace("CC-vision", "CC-visioX") == missing


@pytest.mark.long
def test_each_row_leads_to_the_lines_that_it_sums(world: World, charged: Workload) -> None:
    path = job_path(world, charged)
    answer = get(world.finance, open=texts(path[:4]))
    for row in answer.context["rows"]:
        keys = dict(zip(LEVELS, row["node"].path, strict=False))
        lines = charge_lines(JANUARY, **keys)
        exact = sum((line.charged for line in lines), Decimal(0))
        assert abs(exact - row["group"].charged) < Decimal("0.01"), row["path"]
        client = Client()
        client.force_login(world.finance)
        shown = client.get(row["lines"])
        assert shown.context["page"].paginator.count == lines.count()


@pytest.mark.parametrize(("amount", "is_over"), [("90.00", True), ("90000.00", False)])
def test_the_budget_of_a_row_is_marked_when_it_is_exceeded(
    world: World, charged: Workload, amount: str, is_over: bool
) -> None:
    Budget.objects.create(team=world.vision.team, month=JANUARY, amount=amount)
    answer = get(world.vision.lead, open="CC-vision")
    (use,) = [row["node"].budget for row in answer.context["rows"] if row["node"].budget]
    assert use.is_over is is_over and use.amount == Decimal(amount)
    table = answer.content.decode().split('<table class="tree">')[1].split("</table>")[0]
    assert (" over</span>" in table and "text-bad" in table) is is_over


# -- the month before ----------------------------------------------------------------------------------------


def test_a_month_that_is_over_is_compared_with_the_whole_month_before(
    world: World, charged: Workload
) -> None:
    compared = charges_before(("cost_centre",), FEBRUARY, None, None, [{}])
    january = {node.path: node.group.charged for node in whole_tree(world.finance).nodes}
    assert compared.now is None
    months = load_statement_months()
    assert is_compared(FEBRUARY, None, months) and not is_compared(FEBRUARY, 0, months)
    assert not is_compared(JANUARY, None, months)
    assert compared.before == {path: amount for path, amount in january.items() if amount}


@pytest.mark.parametrize("role", ["finance", "member"])
def test_the_present_month_is_compared_with_the_same_whole_days_of_the_month_before(
    world: World, charged: Workload, role: str
) -> None:
    held = Charge.objects.filter(workload=charged).values_list("day", flat=True)[0]
    cells, project = policy.visible_cells(world.people[role]), [{"project": charged.project_id}]
    for days, found in ((held.day, True), (held.day - 1, False)):
        compared = charges_before(("workload",), FEBRUARY, days, cells, project)
        assert ((charged.pk,) in compared.before) is found
        assert compared.now == {}


def test_only_whole_days_of_the_present_month_are_compared() -> None:
    march = date(2026, 3, 1)
    for day, days in ((1, 0), (2, 1), (31, 30)):
        now = timezone.now().replace(year=2026, month=3, day=day, hour=12)
        assert compared_day_count(march, now) == days
    assert compared_day_count(march, timezone.now().replace(year=2026, month=4, day=1)) is None


# -- texts ---------------------------------------------------------------------------------------------------


def test_the_finding_names_the_largest_row_and_the_budgets_that_are_exceeded() -> None:
    charged = [Decimal(60), Decimal(40)]
    over = ("CC-1", "70.00", "50.00")
    assert charge_tree_texts.finding(["CC-1", "CC-2"], charged, []) == ("CC-1 is the largest: 60 %.", "")
    assert charge_tree_texts.finding(["CC-1", "CC-2"], charged, [over]) == (
        "CC-1 is the largest and exceeds its budget:",
        "forecast 70.00 of 50.00.",
    )
    assert charge_tree_texts.finding([], [], []) == ("", "")


def test_the_page_says_which_days_are_compared(world: World, charged: Workload) -> None:
    assert "December 2025 can&#x27;t be compared" in get(world.finance).content.decode()
    february = get(world.finance, month="2026-02").content.decode()
    assert "Since Jan: against all of January 2026." in february
    assert charge_tree_texts.since_days(JANUARY, 22, is_compared=True).endswith(
        "first 22 days of each month."
    )


def test_the_page_names_the_largest_row(world: World, charged: Workload) -> None:
    largest = max(whole_tree(world.finance).nodes, key=lambda node: node.group.charged)
    assert f"{largest.group.key} is the largest" in get(world.finance).content.decode()
    assert "CC-vision is charged everything" in get(world.vision.member).content.decode()
    assert ChargeCell.objects.exists()


@pytest.mark.parametrize("role", ["finance", "lead", "member"])
def test_the_page_runs_few_queries(world: World, charged: Workload, role: str) -> None:
    client = Client()
    client.force_login(world.people[role])
    query = {"month": MONTH, "open": texts(job_path(world, charged)[1:3]), "cost_centre": "CC-vision"}
    with CaptureQueriesContext(connection) as queries:
        assert client.get(reverse("chargeback"), query).status_code == 200
    assert len(queries) <= 36


# -- corrections ---------------------------------------------------------------------------------------------


def write_corrected(rates: World) -> World:
    """Correct a closed March in April."""
    late_fact_about_march(rates)
    return rates


corrected = world_fixture(write_corrected, after=rates)


def test_corrections_have_rows_of_their_own_that_lead_to_their_lines(corrected: World) -> None:
    answer = get(corrected.finance, month="2026-04")
    rows, table = answer.context["rows"], answer.context["table"]
    (row,) = [row for row in rows if row["kind"] == "correction" and row["group"].charged]
    assert (row["name"], row["group"].charged) == ("Correction of March 2026", Decimal("-14.40"))
    assert row["number"] == "2026-03/CC-100/1" and row["statement"] in answer.content.decode()
    assert sum(each["group"].charged for each in rows) == table.charged
    client = Client()
    client.force_login(corrected.finance)
    lines = client.get(row["lines"])
    assert lines.context["rows"] and all(
        entry["line"].corrected_month == date(2026, 3, 1) for entry in lines.context["rows"]
    )


def test_a_long_block_of_corrections_is_shown_in_pages(
    corrected: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charge_lines_page, "CORRECTIONS_PER_PAGE", 1)
    (block,) = chargeback.correction_rows(corrected.finance, date(2026, 4, 1), {})
    monkeypatch.setattr(chargeback, "correction_rows", lambda *_: [block, block])
    for number in (1, 2):
        answer = get(corrected.finance, month="2026-04", corrections=number)
        assert len(answer.context["corrections"]) == 1
        assert f"{number} to {number} of 2" in answer.content.decode()
