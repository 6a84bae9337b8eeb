"""Test the utilisation page: its definitions, its parameters, and the data of its charts."""

from __future__ import annotations

import csv
import datetime as dt
import re
from decimal import Decimal
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo

import pytest
from django.urls import reverse

from portal.models import Organisation, User
from portal.reads.utilisation.query import DIMENSIONS
from portal.web.money.utilisation.table_images import STEP_COLOURS
from portal.wording.pages.money.money_pages import WATERFALL_STEPS
from scheduler.models import Allocation, Gpu, MaintenanceWindow, Pool, Workload
from telemetry.core.rollup import BUSY_PERCENT, LOW_SM_PERCENT, LOW_TENSOR_PERCENT
from telemetry.models import Price, SampleGap, Statement
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.demand import demand_by_weekday, hourly_demand
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_over_time import step_edges
from telemetry.reads.usage_rows import UsageRows
from telemetry.reads.utilisation.waste import (
    RANKINGS,
    WASTE_STEPS,
    rank_of_person,
    waste_by,
    waste_trends,
)
from telemetry.reads.waterfall import WATERFALL_ORDER, usage_waterfall
from tests.portal.web.test_manage_money_pages import signed_in
from tests.seeds import first_cases
from tests.telemetry.rows import at, hold, host_state, measure_sm_activity, rates, workload
from tests.telemetry.test_selectors import create_hour_of_use
from tests.world import H100, World, units_of

__all__ = ["rates"]
pytestmark = pytest.mark.django_db
DOCUMENT = Path(__file__).parents[3] / "docs" / "telemetry.md"


def test_the_page_and_the_documentation_have_the_same_definitions() -> None:
    table = DOCUMENT.read_text().partition("<!-- waterfall-steps")[2].partition("<!-- /waterfall-steps")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines()[3:] if line]
    assert rows == [[f"`{key}`", *WATERFALL_STEPS[key]] for key in WATERFALL_ORDER]
    assert set(STEP_COLOURS) == set(WATERFALL_ORDER) == set(WATERFALL_STEPS)


def test_the_definitions_name_the_limits_of_the_code() -> None:
    for step in ("empty", "idle"):
        assert f"under {BUSY_PERCENT:.0f} % busy" in WATERFALL_STEPS[step][1]
    assert f"SM activity under {LOW_SM_PERCENT:.0f} %" in WATERFALL_STEPS["inefficient"][1]
    assert f"tensor activity under {LOW_TENSOR_PERCENT:.0f} %" in WATERFALL_STEPS["inefficient"][1]


@pytest.mark.parametrize(
    ("query", "says"),
    first_cases(
        4,
        [
            (
                {"start": "2026-01-01T00:00+02:00", "end": "2026-01-02"},
                "start is '2026-01-01T00:00+02:00'; allowed:",
            ),
            ({"start": "2026-01-01", "end": "2026-01-02T00:00Z"}, "end is '2026-01-02T00:00Z'; allowed:"),
            ({"start": "2026-01-01"}, "end is ''; allowed: a date or a time in UTC without a zone"),
            ({"end": "2026-01-01"}, "start is ''; allowed:"),
            ({"start": "2026-01-01", "end": "soon"}, "end is 'soon'; allowed:"),
            ({"start": "1999-12-31", "end": "2000-02-01"}, "start is '1999-12-31'; allowed:"),
            (
                {"start": "2026-01-01", "end": "2027-03-01"},
                "end is '2027-03-01'; allowed: after the start and within 400",
            ),
            ({"start": "2026-01-02", "end": "2026-01-01"}, "end is '2026-01-01'; allowed: after the start"),
            (
                {"colour": "red"},
                "'colour' is not a parameter of this page; allowed: period, start, end, compare",
            ),
            ({"pool": "nowhere"}, "pool is 'nowhere'; allowed: "),
            ({"team": "nowhere"}, "team is 'nowhere'; allowed: "),
            ({"model": "GTX"}, "model is 'GTX'; allowed: "),
            (
                {"project": "vision"},
                "project is 'vision'; allowed: TEAM/PROJECT of a project that you may see",
            ),
            ({"person": "nobody"}, "person is 'nobody'; allowed: the user name of a person whom you may see"),
            ({"unit": "kWh"}, "unit is 'kWh'; allowed: hours, money"),
            ({"compare": "ever"}, "compare is 'ever'; allowed: before, 4w, 52w, off"),
            ({"waste": "host"}, "waste is 'host'; allowed: person, project, workload"),
            ({"step": "lost"}, "step is 'lost'; allowed: empty, idle, inefficient, reserved_unused"),
            ({"type": "games"}, "type is 'games'; allowed: training"),
            (
                {"period": "bogus", "start": "2026-01-01", "end": "2026-01-02"},
                "period is 'bogus'; allowed: nothing, because start and end are given",
            ),
        ],
    ),
)
def test_a_parameter_that_would_be_ignored_is_refused(world: World, query: dict[str, str], says: str) -> None:
    client = signed_in(world.operator)
    for address in (reverse("utilisation"), reverse("utilisation-csv", args=["waterfall"])):
        answer = client.get(address, query)
        assert answer.status_code == 404
        assert says in unescape(answer.content.decode())


@pytest.mark.parametrize(
    ("end", "zone", "shown"),
    [
        ("2026-03-03", "Asia/Kathmandu", "Sun 1 Mar 14:45 to Tue 3 Mar 05:45. Coverage"),
        ("2026-06-01", "Europe/Berlin", "Sun 1 Mar 10:00 to "),
    ],
)
def test_header_and_charts_have_the_zone_of_the_viewer_and_long_periods_that_of_the_organisation(
    rates: World, end: str, zone: str, shown: str
) -> None:
    Organisation.objects.update(time_zone="Europe/Berlin")
    rates.operator.time_zone = "Asia/Kathmandu"
    rates.operator.save()
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9), at(11), end_code="finished")
    create_hour_of_use(allocation, 9)
    page = signed_in(rates.operator).get(reverse("utilisation"), {"start": "2026-03-01T09:00", "end": end})
    text = page.content.decode()
    assert shown in text and f'data-zone="{zone}"' in text
    assert text.count("imes in ") == 1 and f"Times in {zone}" in text, "the page names its zone once"
    charts = {entry["name"]: entry["chart"] for entry in page.context["charts"]}
    layout = charts["use-over-time"].figure["layout"]
    first = dt.datetime.fromisoformat(layout["meta"]["times"][1]).astimezone(ZoneInfo(zone))
    assert f"{first:%Y-%m-%dT%H:%M}" == layout["meta"]["shown"][1]
    if zone == "Europe/Berlin":  # steps of six hours begin at midnight of the organisation
        assert first.hour % 6 == 0


def figures(world: World) -> dict[str, dict[str, Any]]:
    page = signed_in(world.operator).get(reverse("utilisation"), {"start": "2026-03-02", "end": "2026-03-03"})
    return {entry["name"]: entry["chart"].figure for entry in page.context["charts"]}


@pytest.fixture
def used(rates: World) -> World:
    """Return a world in which one team held a GPU for two hours and another one for one hour."""
    first, second = units_of(rates.hosts["alpha"])[:2]
    hold(workload(rates, rates.vision), first, at(9), at(11), end_code="finished")
    hold(workload(rates, rates.language), second, at(9), at(10), end_code="finished")
    charge_all_gpus(at(12))
    return rates


def test_the_rows_of_the_waterfall_show_the_length_of_a_step_and_sum_to_the_capacity(used: World) -> None:
    fall = page_of(used.operator).context["waterfall"]
    hours = {row["key"]: float(row["hours"].replace(",", "")) for row in fall["rows"]}
    assert hours["unmeasured"] == 3.0
    assert sum(hours.values()) == pytest.approx(float(fall["hours"].replace(",", "")), abs=0.5)


def test_bars_are_hovered_one_by_one_and_every_hover_has_a_unit(used: World) -> None:
    for name, figure in figures(used).items():
        for trace in filter(lambda trace: trace["x"], figure["data"]):
            hover = " ".join([trace.get("hovertemplate", ""), *trace.get("hovertext", [])])
            unit = "GPU-hour|Maintenance|Drain|: [+-]" if trace.get("name") == "events" else HOVER_UNITS
            assert re.search(unit, hover), (name, hover)
        if any(trace["type"] == "bar" for trace in figure["data"]):
            assert figure["layout"]["hovermode"] == "closest", name


HOVER_UNITS = "GPUs|GPU-hours|wait at most|utilisation %{"


def page_of(user: User, **query: str) -> Any:
    return signed_in(user).get(reverse("utilisation"), {"start": "2026-03-02", "end": "2026-03-03", **query})


def charts_of(user: User, **query: str) -> dict[str, Any]:
    page = page_of(user, **query)
    return {entry["name"]: entry["chart"] for entry in page.context["charts"]}


def addresses_of(chart: Any) -> set[str]:
    """Return the addresses that the points of a chart open."""
    found: set[str] = set()
    for trace in chart.figure["data"]:
        rows = trace.get("customdata", [])
        found.update(cell for row in rows for cell in (row if isinstance(row, list) else [row]) if cell)
    return found


# One dimension of people and one of hardware are in the short part.
@pytest.mark.parametrize(
    "dimension",
    [
        name if name in ("project", "host") else pytest.param(name, marks=pytest.mark.long)
        for name, _ in DIMENSIONS
    ],
)
def test_every_bar_and_cell_opens_a_page_with_the_rows_behind_it(used: World, dimension: str) -> None:
    client = signed_in(used.operator)
    charts = charts_of(used.operator, by=dimension)
    for name in ("use-over-time", "use-by", "now", "saving"):
        addresses = addresses_of(charts[name])
        assert addresses, name
        assert client.get(min(addresses)).status_code == 200
        rows = [cell["url"] for row in charts[name].rows for cell in row if isinstance(cell, dict)]
        assert rows, name  # the table has links for people who cannot click a chart


def test_a_click_on_an_hour_opens_that_hour_with_the_other_filters(used: World) -> None:
    (address,) = (
        address
        for address in addresses_of(charts_of(used.operator, by="project")["use-over-time"])
        if "T09" in address.partition("end=")[0]
    )
    assert dict(parse_qsl(urlsplit(address).query)) == {
        "start": "2026-03-02T09:00",
        "end": "2026-03-02T10:00",
        "by": "project",
    }


def test_a_person_is_a_filter_only_for_viewers_who_may_see_the_person(used: World) -> None:
    stranger = User.objects.create_user("stranger-2", password=None)
    name = used.vision.member.username
    own = page_of(used.vision.member, person=name)
    assert own.context["waterfall"]["hours"] == "2.0"
    answer = signed_in(stranger).get(reverse("utilisation"), {"person": name})
    assert answer.status_code == 404


def test_a_finding_is_given_only_if_enough_was_measured(used: World, rates: World) -> None:
    assert charts_of(used.operator)["use-by"].finding is None  # three GPU-hours
    units = units_of(used.hosts["beta"])
    for unit in units[:4]:
        hold(workload(used, used.vision), unit, at(0), at(12), end_code="finished")
    charge_all_gpus(at(23))
    page = page_of(used.operator)
    charts = {entry["name"]: entry["chart"] for entry in page.context["charts"]}
    assert charts["use-by"].finding.main == "Vision held most: 98 % of all held GPU-hours."
    assert re.fullmatch(
        r"\d+ % of capacity was held and wasted, \d+ % nobody took\.",
        page.context["waterfall"]["finding"].main,
    )
    assert charts["use-over-time"].finding.main.startswith("At most 6 of 28 GPUs were held, ")


def test_a_long_day_has_25_hours_and_a_short_day_23() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    for first, last, hours in ((28, 30, [24, 23]), (24, 26, [24, 25])):
        month = 3 if hours[1] == 23 else 10
        start = dt.datetime(2026, month, first, tzinfo=berlin)
        end = dt.datetime(2026, month, last, tzinfo=berlin)
        edges = step_edges(UsageFilters(start, end), dt.timedelta(days=1), berlin)
        assert [(b - a) / 3600 for a, b in pairwise(edges)] == hours


def test_the_map_of_the_fleet_says_that_it_shows_the_work_of_everybody(used: World) -> None:
    says = "of all work on the hosts: only the filters of pool and model apply"
    for name in ("fleet", "now"):
        assert says not in charts_of(used.operator, pool=used.shared.slug)[name].hint
        for given in ({"team": "vision"}, {"person": used.vision.member.username}, {"type": "training"}):
            assert says in charts_of(used.operator, **given)[name].hint


# -- waste ---------------------------------------------------------------------------------------------------


@pytest.fixture
def wasted(used: World) -> World:
    """Return a world in which language did not use one hour and vision used half of one of its two hours."""
    for allocation in Allocation.objects.order_by("period"):
        is_vision = allocation.project == used.vision.project
        hours = 2 if is_vision else 1
        for hour in range(hours):
            create_hour_of_use(
                allocation,
                9 + hour,
                busy_seconds=1800.0 if is_vision else 0.0,
                sm_active_seconds=360.0,
                inefficient_seconds=0.0,
                utilisation_seconds=900.0 if is_vision else 0.0,
                idle_seconds=1800.0 if is_vision else 0.0,
                empty_seconds=0.0 if is_vision else 3600.0,
            )
    return used


def test_the_rows_of_waste_sum_to_the_steps_of_the_waterfall(wasted: World) -> None:
    filters = UsageFilters(at(0), at(0, day=3))
    reads = UsageRows(filters)
    fall = usage_waterfall(filters, reads)
    steps = {step.key: step for step in fall.steps}
    for ranking in RANKINGS:
        rows = waste_by(ranking, filters, fall.parts, reads)
        for step in WASTE_STEPS:
            assert sum(row.hours[step] for row in rows) == pytest.approx(steps[step].gpu_hours)
        assert sum(row.cost for row in rows) == sum((steps[step].cost for step in WASTE_STEPS), Decimal(0))
        assert [row.wasted_hours for row in rows] == pytest.approx([1.0, 1.0])
    by_user = {row.work.user: row for row in waste_by("user", filters, fall.parts, reads)}
    vision, language = by_user[wasted.vision.member.pk], by_user[wasted.language.member.pk]
    assert (vision.main_step, language.main_step) == ("idle", "empty")
    assert (vision.busy, language.busy) == (pytest.approx(0.25), 0.0)
    trends = waste_trends("user", reads, [vision.work])
    assert sum(point or 0.0 for point in trends[vision.work]) == pytest.approx(vision.wasted_hours)


@pytest.mark.parametrize(
    ("role", "named", "others"),
    [
        ("operator", 2, 0),
        pytest.param("finance", 2, 0, marks=pytest.mark.long),
        pytest.param("auditor", 2, 0, marks=pytest.mark.long),
        ("lead", 1, 1),
        ("member", 1, 1),
        pytest.param("stranger", 0, 2, marks=pytest.mark.long),
    ],
)
def test_people_see_their_own_waste_and_leads_that_of_their_teams(
    wasted: World, role: str, named: int, others: int
) -> None:
    for ranking in ("workload", "person"):
        page = page_of(wasted.people[role], waste=ranking)
        league = page.context["league"]
        if ranking == "workload":
            assert len(league["rows"]) == named
            assert (league["rest"][1] or {}).get("text", "0").split()[0] == str(others)
        assert league["hours"] == "2.0"  # the total is the same for everybody
        text = page.content.decode().partition('id="league"')[2].partition("</section>")[0]
        assert (wasted.language.member.username in text) is (named == 2)
        file = signed_in(wasted.people[role]).get(
            reverse("utilisation-csv", args=["waste"]),
            {"start": "2026-03-02", "end": "2026-03-03", "waste": ranking},
        )
        assert (wasted.language.member.username in file.getvalue().decode()) is (named == 2)


def test_everybody_sees_their_own_rank_among_all_people(wasted: World) -> None:
    for query in ({}, {"waste": "person"}, {"waste": "project"}):
        league = page_of(wasted.people["member"], **query).context["league"]
        assert re.fullmatch(r"Among people, you are number [12] of 2\.", league["own_rank"]), query
        league = page_of(wasted.people["stranger"], **query).context["league"]
        assert league["own_rank"] == "Nothing of yours was wasted."


def test_the_own_rank_counts_all_work_of_a_person_in_the_order_of_the_page(wasted: World) -> None:
    filters = UsageFilters(at(0), at(0, day=3))
    parts = usage_waterfall(filters, UsageRows(filters)).parts
    vision, language = wasted.vision.member.pk, wasted.language.member.pk
    assert rank_of_person(parts, vision)[1] == 2 and rank_of_person(parts, 0) == (None, 2)
    assert rank_of_person(parts, vision, ["idle"]) == (1, 1)
    assert rank_of_person(parts, language, ["idle"], by_cost=True) == (None, 1)


def test_a_request_of_which_a_part_was_empty_or_idle_says_how_many_gpus_it_used(rates: World) -> None:
    work = workload(rates, rates.vision, units=8, name="sleepy")
    for number, unit in enumerate(units_of(rates.hosts["alpha"])[:8]):
        allocation = hold(work, unit, at(9), at(10), end_code="finished")
        busy, idle, empty = [(3600.0, 0.0, 0.0), (0.0, 3600.0, 0.0), (0.0, 0.0, 3600.0)][min(2, number // 2)]
        measures = {
            "busy_seconds": busy,
            "idle_seconds": idle if number < 7 else 3600.0,
            "empty_seconds": empty,
        }
        if number == 7:
            measures["empty_seconds"] = 0.0
        create_hour_of_use(allocation, 9, inefficient_seconds=0.0, **measures)
    charge_all_gpus(at(12))
    page = page_of(rates.operator)
    (row,) = page.context["league"]["rows"]
    assert row["reason"] == "asked 8, used 2"
    assert row["advise"] == reverse("workload-report", args=[work.public_id])
    assert signed_in(rates.operator).get(row["advise"]).status_code == 200
    client = signed_in(rates.operator)
    file = client.get(
        reverse("utilisation-csv", args=["waste"]), {"start": "2026-03-02", "end": "2026-03-03"}
    )
    (line,) = csv.DictReader(file.getvalue().decode("utf-8-sig").splitlines())
    assert (line["asked_gpus"], line["used_gpus"]) == ("8", "2")
    (person,) = page_of(rates.operator, waste="person").context["league"]["rows"]
    assert person["advise"] == "" and "asked" not in person["reason"]


def test_a_step_of_the_waterfall_opens_the_work_behind_it(wasted: World) -> None:
    rows = {row["key"]: row for row in page_of(wasted.operator).context["waterfall"]["rows"]}
    page = signed_in(wasted.operator).get(rows["empty"]["url"].partition("#")[0])
    league = page.context["league"]
    assert [row["hours"] for row in league["rows"]] == [rows["empty"]["hours"]] == ["1.0"]
    assert league["rows"][0]["reason"] == "no process for 1 of 1 h"
    assert rows["productive"]["url"] == "" and rows["unallocated"]["who_text"] == "operators: quotas"


def test_money_is_a_unit_only_for_people_who_see_the_cost_of_gpus(wasted: World) -> None:
    page = page_of(wasted.people["finance"], unit="money")
    assert page.context["league"]["is_money"] and page.context["league"]["cost"]
    assert page.context["waterfall"]["is_money"]
    charts = {entry["name"]: entry["chart"] for entry in page.context["charts"]}
    (bar,) = charts["use-by"].figure["data"]
    assert dict(zip(bar["y"], bar["x"], strict=True)) == {"Vision": 13.6, "Language": 2.4, "Robotics": 0.0}
    assert charts["use-by"].figure["layout"]["xaxis"]["title"]["text"] == "EUR"
    assert charts["right-sizing"].figure["layout"]["xaxis"]["title"]["text"] == "EUR saved"
    answer = page_of(wasted.people["member"], unit="money")
    assert answer.status_code == 404
    assert "allowed: hours, because you do not see the cost of GPUs" in answer.content.decode()
    assert not page_of(wasted.people["member"]).context["league"]["cost"]


def test_shares_are_compared_with_the_chosen_period(wasted: World) -> None:
    hold(workload(wasted, wasted.vision), units_of(wasted.hosts["beta"])[0], at(0, day=3), at(12, day=3))
    charge_all_gpus(at(12, day=3))
    query = {"start": "2026-03-03T00:00", "end": "2026-03-03T12:00"}
    rows = page_of(wasted.operator, **query).context["waterfall"]
    deltas = {row["key"]: row["delta"] for row in rows["rows"]}
    assert rows["compares"] and deltas["unmeasured"]["direction"] == "up"
    assert deltas["unmeasured"]["tone"] == "worse" and deltas["unallocated"]["tone"] == ""
    assert not page_of(wasted.operator, **query, compare="off").context["waterfall"]["compares"]


def test_the_tiles_and_the_use_by_group_are_compared_with_the_chosen_period(wasted: World) -> None:
    work = workload(wasted, wasted.vision, submitted_at=at(0, day=3))
    hold(work, units_of(wasted.hosts["beta"])[0], at(0, 10, day=3), at(12, day=3))
    Workload.objects.exclude(pk=work.pk).update(submitted_at=at(8))
    charge_all_gpus(at(0, day=31))
    for query, hours in (
        ({"start": "2026-03-03T00:00", "end": "2026-03-04T00:00"}, "before"),
        ({"start": "2026-03-30T00:00", "end": "2026-03-31T00:00", "compare": "4w"}, "4w"),
    ):
        page = page_of(wasted.operator, **query)
        tiles = {reading["label"]: reading.get("delta") for reading in page.context["figures"]}
        assert tiles["Productive"]["direction"] == "down", hours
        assert tiles["Held but not used"]["tone"] == "good", hours
        chart = next(entry["chart"] for entry in page.context["charts"] if entry["name"] == "use-by")
        assert chart.columns[2]["label"] == "Against before", hours
    page = page_of(wasted.operator, start="2026-03-03", end="2026-03-04")
    tiles = {reading["label"]: reading.get("delta") for reading in page.context["figures"]}
    assert tiles["Typical wait"] == {"direction": "down", "tone": "good", "text": "50 min"}
    chart = next(entry["chart"] for entry in page.context["charts"] if entry["name"] == "use-by")
    changes = {(row[0]["text"] if isinstance(row[0], dict) else row[0]): row[2] for row in chart.rows}
    assert (changes["Vision"], changes["Robotics"]) == ("+0.41", "0.00")  # 11 h 50 min and 2 h of a day
    alone = charts_of(wasted.operator, start="2026-03-03", end="2026-03-04", compare="off")["use-by"]
    assert "Against before" not in [column["label"] for column in alone.columns]


# -- demand and work -----------------------------------------------------------------------------------------


def test_the_demand_of_an_hour_counts_held_gpus_and_gpus_that_requests_wait_for(used: World) -> None:
    workload(used, used.vision, state="queued", submitted_at=at(10), units=2)
    ended = workload(used, used.vision, state="ended", submitted_at=at(9), units=4)
    Workload.objects.filter(pk=ended.pk).update(ended_at=at(9, 30))
    filters = UsageFilters(at(9), at(14))
    tokyo = ZoneInfo("Asia/Tokyo")
    hours = hourly_demand(filters, UsageRows(filters), tokyo, at(12))
    # Hours that have not begun are left out.
    assert hours.starts.tolist() == [at(hour).timestamp() for hour in (9, 10, 11)]
    assert hours.held == pytest.approx([2, 1, 0])
    assert hours.waiting == pytest.approx([2, 2, 2])
    grid = demand_by_weekday(hours, tokyo)
    assert grid[0][18] == pytest.approx(4) and grid[0][17] is None


def test_a_team_filter_leaves_only_the_demand_of_that_team(used: World) -> None:
    workload(used, used.vision, state="queued", submitted_at=at(10), units=2)
    filters = UsageFilters(at(9), at(12), team=used.language.team.pk)
    hours = hourly_demand(filters, UsageRows(filters), ZoneInfo("UTC"), at(12))
    assert hours.wanted == pytest.approx([1, 0, 0])


def test_use_over_time_shows_capacity_guarantees_and_the_compared_period(used: World) -> None:
    charts = charts_of(used.operator)
    layout = charts["use-over-time"].figure["layout"]
    texts = [label["text"] for label in layout["annotations"]]
    assert any(re.fullmatch(r"capacity \d+", text) for text in texts)
    assert any(re.fullmatch(r"guaranteed \d+", text) for text in texts)
    assert all(trace["name"] != "before" for trace in charts["use-over-time"].figure["data"])
    later = charts_of(used.operator, start="2026-03-03", end="2026-03-04")["use-over-time"].figure
    assert not [trace for trace in later["data"] if trace["name"] != "events"]  # nothing was held that day
    hold(workload(used, used.vision), units_of(used.hosts["beta"])[0], at(3, day=3), at(5, day=3))
    later = charts_of(used.operator, start="2026-03-03", end="2026-03-04")["use-over-time"].figure
    (before,) = (trace for trace in later["data"] if trace["name"] == "before")
    assert dict(zip(before["x"], before["y"], strict=True))["2026-03-03T09:00"] == 2.0
    alone = charts_of(used.operator, team="vision")["use-over-time"].figure["layout"]
    assert all(shape.get("yref") == "paper" for shape in alone["shapes"])  # no capacity of one team


def test_the_capacity_is_a_line_of_steps_that_follows_growth(used: World) -> None:
    Gpu.objects.update(created_at=at(0, day=1))
    Gpu.objects.filter(host=used.hosts["gamma"]).update(created_at=at(12))
    figure = charts_of(used.operator)["use-over-time"].figure
    (line,) = (trace for trace in figure["data"] if trace["name"] == "capacity")
    gpus = dict(zip(line["x"], line["y"], strict=True))
    most, grown = Gpu.objects.count(), Gpu.objects.filter(host=used.hosts["gamma"]).count()
    assert (gpus["2026-03-02T11:00"], gpus["2026-03-02T12:00"]) == (most - grown, most)
    assert f"capacity {most}" in [label["text"] for label in figure["layout"]["annotations"]]
    assert all(
        trace["name"] != "capacity"
        for trace in charts_of(used.operator, team="vision")["use-over-time"].figure["data"]
    )


def test_points_of_other_peoples_work_have_no_name(wasted: World) -> None:
    measure_sm_activity(0.1)
    for role, names in (("operator", 2), ("member", 1), ("stranger", 0)):
        chart = charts_of(wasted.people[role])["busy-and-sm"]
        hovers = [text for trace in chart.figure["data"] for text in trace["hovertext"]]
        assert len(hovers) == 2
        assert sum("without a name" not in text for text in hovers) == names
        assert len(chart.rows) == names


# -- long periods --------------------------------------------------------------------------------------------

LONG_PERIOD = {"start": "2026-02-01", "end": "2026-05-01"}


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"by": "gpu"}, "by is 'gpu'; allowed: team, project, user, type, model, for a period over 62 days"),
        ({"waste": "workload"}, "waste is 'workload'; allowed: person, project, for a period over 62 days"),
        ({"by": "colour"}, "by is 'colour'; allowed: team, project, user, type, model."),
    ],
)
def test_a_long_period_refuses_rows_of_single_gpus(used: World, query: dict[str, str], says: str) -> None:
    answer = signed_in(used.operator).get(reverse("utilisation"), LONG_PERIOD | query)
    assert answer.status_code == 404
    assert says in unescape(answer.content.decode())


def test_a_long_period_shows_every_chart_and_offers_only_what_it_allows(wasted: World) -> None:
    page = page_of(wasted.operator, **LONG_PERIOD)
    assert page.status_code == 200
    assert [choice["label"] for choice in page.context["dimensions"]][-1] == "Model"
    assert [choice["label"] for choice in page.context["league"]["rankings"]] == ["Person", "Project"]
    offered = page_of(wasted.operator, by="gpu", waste="workload").context["periods"]
    year = next(choice["url"] for choice in offered if choice["label"] == "1 year")
    assert signed_in(wasted.operator).get(year).status_code == 200


# -- events --------------------------------------------------------------------------------------------------


def event_texts(user: User, **query: str) -> list[tuple[str, str]]:
    table = charts_of(user, **query)["use-over-time"].more_table
    rows = table["rows"] if table else []
    return [(row[0]["text"] if isinstance(row[0], dict) else row[0], row[1]) for row in rows]


def test_use_over_time_marks_and_lists_what_changed_use_or_capacity(used: World) -> None:
    alpha, beta = used.hosts["alpha"], used.hosts["beta"]
    Price.objects.create(
        pool=None,
        model=H100,
        cost_per_gpu_hour=Decimal(2),
        price_per_gpu_hour=Decimal("2.5"),
        valid_from=at(19),
        created_at=at(19),
    )
    MaintenanceWindow.objects.create(host=alpha, start=at(11), end=at(13), reason="x", created_at=at(9))
    host_state(beta, at(12), admin="draining")
    host_state(beta, at(14))
    for host in (alpha, beta):
        SampleGap.objects.create(host=host, cause="skipped", start=at(15), end=at(16))
    Gpu.objects.filter(host=used.hosts["gamma"], index=0).update(retired_at=at(17))
    Statement.objects.create(month=dt.date(2026, 2, 1), state="closed", closed_at=at(18))
    found = event_texts(used.finance)
    texts = [text for text, _ in found]
    assert "Price of H100-80GB: 2.50 EUR a GPU-hour" in texts
    assert ("Maintenance of alpha", "Mon 2 Mar 11:00 to 13:00") in found
    assert ("Drain of beta", "Mon 2 Mar 12:00 to 14:00") in found
    assert "No telemetry of alpha and 1 more hosts: batches did not arrive" in texts
    assert any(text.endswith(": -1 GPU H100-80GB") or ": -1 GPU " in text for text in texts)
    assert "Month 2026-02 closed" in texts
    assert "Month 2026-02 closed" not in [text for text, _ in event_texts(used.vision.member)]
    figure = charts_of(used.finance)["use-over-time"].figure
    (marks,) = (trace for trace in figure["data"] if trace["name"] == "events")
    assert len(marks["x"]) == len(found)
    assert reverse("host", args=["alpha"]) in marks["customdata"]
    bands = [shape for shape in figure["layout"]["shapes"] if shape["type"] == "rect"]
    assert ("2026-03-02T11:00", "2026-03-02T13:00") in [(band["x0"], band["x1"]) for band in bands]


def test_events_of_other_pools_are_not_shown(used: World) -> None:
    MaintenanceWindow.objects.create(
        host=used.hosts["alpha"], start=at(11), end=at(13), reason="x", created_at=at(9)
    )
    other = next(pool.slug for pool in Pool.objects.all() if pool.pk != used.hosts["alpha"].pool_id)
    assert "Maintenance of alpha" not in [text for text, _ in event_texts(used.operator, pool=other)]


# -- waits and pooling ---------------------------------------------------------------------------------------


def test_waits_are_ranges_on_a_log_scale_by_size_model_and_team(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    for minute in range(1, 12):
        work = workload(rates, rates.vision, submitted_at=at(9), models_wanted=[H100])
        start = at(9, minute)
        hold(work, unit, start, start + dt.timedelta(seconds=30), end_code="finished")
    for by, name in (("size", "1 GPU"), ("model", H100), ("team", "Vision")):
        chart = charts_of(rates.operator, waits=by)["waits"]
        band, half, most = chart.figure["data"]
        assert chart.figure["layout"]["xaxis"]["type"] == "log"
        assert (band["y"], band["base"], band["x"]) == ([name], [120.0], [480.0])
        assert (half["x"], most["x"]) == ([360.0], [600.0])
        assert band["hovertext"][0].startswith(f"{name}: half wait at most 6 min")
        assert [choice["current"] for choice in chart.choices].count(True) == 1
    assert charts_of(rates.operator, waits="team")["waits"].rows[0][0]["url"].find("team=vision") > 0


def test_a_wait_of_zero_is_drawn_on_the_log_scale(rates: World) -> None:
    work = workload(rates, rates.vision, submitted_at=at(9), models_wanted=[H100])
    hold(work, units_of(rates.hosts["alpha"])[0], at(9), at(10), end_code="finished")
    band, half, _ = charts_of(rates.operator)["waits"].figure["data"]
    assert (band["base"], half["x"]) == ([1.0], [1.0])


def test_pooling_stacks_the_need_of_each_team_beside_the_need_of_all(used: World) -> None:
    chart = charts_of(used.operator)["saving"]
    *teams, together = chart.figure["data"]
    assert {trace["name"] for trace in teams} == {"Vision", "Language"}
    assert {trace["y"][0] for trace in teams} == {"Alone"} and together["y"] == ["Together"]
    assert [shape["x0"] for shape in chart.figure["layout"]["shapes"]] == [
        float(next(row[1] for row in chart.rows if row[0] == "Existing GPUs"))
    ]
