"""Test the answers of the utilisation page as JSON, and the levels down to samples."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.db import connection
from django.urls import reverse
from rest_framework.test import APIClient

from portal.models import User
from portal.reads.utilisation.answers import ANSWERS
from portal.reads.utilisation.drill_answers import LEVEL_ANSWERS
from portal.wording.pages.money import drill_texts
from portal.wording.pages.money.utilisation_texts import requests_submitted
from scheduler.models import Gpu, Host, Workload
from telemetry.ingest.stream_format import READING_KINDS, SPARSE_READING_KINDS
from telemetry.models import Rollup, Sample
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.utilisation import fleet_map as fleet_reads
from telemetry.reads.utilisation.raw_series import RAW_READINGS
from telemetry.reads.utilisation.waste import TREND_POINTS, WASTE_STEPS
from tests.portal.web.test_manage_money_pages import signed_in
from tests.telemetry.rows import at, hold, rates, workload
from tests.telemetry.test_selectors import create_hour_of_use
from tests.world import World, units_of

__all__ = ["rates"]
pytestmark = pytest.mark.django_db
PERIOD = {"start": at(0).isoformat(), "end": at(0, day=3).isoformat()}
PAGE_PERIOD = {"start": "2026-03-02", "end": "2026-03-03"}
WEEKS_52 = dt.timedelta(weeks=52)
Ask = Callable[..., Any]


@pytest.fixture
def used(rates: World) -> World:
    """Return a world in which vision held GPU 0 and language GPU 1 of alpha, with samples of GPU 0."""
    for number, team in enumerate((rates.vision, rates.language)):
        unit = units_of(rates.hosts["alpha"])[number]
        allocation = hold(workload(rates, team), unit, at(9), at(11), end_code="finished")
        for hour in (9, 10):
            create_hour_of_use(allocation, hour)
        if number == 0:
            rows = [(at(9) + dt.timedelta(seconds=10 * n)) for n in range(30) if not 10 <= n < 20]
            with connection.cursor() as cursor:
                for moment in rows:
                    cursor.execute(
                        "INSERT INTO telemetry_sample (unit_id, allocation_id, ts, utilisation, power_w)"
                        " VALUES (%s, %s, %s, 50, 300)",
                        [unit.pk, allocation.pk, moment],
                    )
    return rates


@pytest.fixture
def ask(used: World, client_of: Callable[[User], APIClient]) -> Ask:
    """Return a function that requests an answer for 2 March as a user."""

    def call(user: User, answer: str, **parameters: Any) -> Any:
        return client_of(user).get(f"/api/v1/utilisation/{answer}/", PERIOD | parameters)

    return call


@pytest.fixture(autouse=True)
def no_cache() -> Any:
    """Compute the map of the fleet each time."""
    with mock.patch("portal.reads.utilisation.fleet_map.cache_get_many", return_value={}):
        yield


def run_of(world: World, team: Any) -> str:
    return str(Workload.objects.get(project=team.project).public_id)


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_answer_of_the_page_is_json_with_the_columns_of_its_csv_file(
    used: World, ask: Ask, answer: str
) -> None:
    found = ask(used.operator, answer)
    assert found.status_code == 200, found.content
    body = found.json()
    assert tuple(body["columns"]) == ANSWERS[answer].columns
    assert (body["answer"], body["start"]) == (answer, "2026-03-02T00:00:00Z")
    for row in body["rows"]:
        assert list(row) == body["columns"]


def test_an_answer_has_the_figures_of_the_page(used: World, ask: Ask) -> None:
    rows = {row["bucket"]: row["gpu_hours"] for row in ask(used.operator, "waterfall").json()["rows"]}
    page = signed_in(used.operator).get(reverse("utilisation"), PAGE_PERIOD)
    shown = {row["key"]: row["hours"] for row in page.context["waterfall"]["rows"]}
    assert {key: f"{rows[key]:,.1f}" for key in shown} == shown


def test_an_answer_has_the_compared_period_and_the_tiles_of_the_page(used: World, ask: Ask) -> None:
    charge_all_gpus(at(0, day=4))
    found = ask(used.operator, "figures").json()["rows"]
    rows = {row["figure"]: row for row in found}
    assert rows["productive_share"]["value"] > 0 and rows["productive_share"]["value_before"] is None
    later = {"start": at(0, day=3).isoformat(), "end": at(0, day=4).isoformat()}
    again = {row["figure"]: row for row in ask(used.operator, "figures", **later).json()["rows"]}
    assert again["productive_share"]["value_before"] == pytest.approx(rows["productive_share"]["value"])
    shares = {
        row["bucket"]: row["share_before"] for row in ask(used.operator, "waterfall", **later).json()["rows"]
    }
    assert shares["productive"] == pytest.approx(rows["productive_share"]["value"])
    hold(workload(used, used.vision), units_of(used.hosts["beta"])[0], at(0, day=3), at(1, day=3))
    levels = {row["start"][11:13]: row for row in ask(used.operator, "levels", **later).json()["rows"]}
    assert levels["09"]["held_gpus_before"] == 2.0 and levels["12"]["held_gpus_before"] == 0.0
    assert levels["09"]["capacity_gpus"] == Gpu.objects.count() and levels["09"]["guaranteed_gpus"] > 0
    year = {"start": (at(0) + WEEKS_52).isoformat(), "end": (at(0, day=3) + WEEKS_52).isoformat()}
    a_year_ago = ask(used.operator, "figures", compare="52w", **year).json()["rows"]
    found = {row["figure"]: row["value_before"] for row in a_year_ago}
    assert found["productive_share"] == pytest.approx(rows["productive_share"]["value"])
    days = {"start": (at(0) + WEEKS_52 - dt.timedelta(days=90)).isoformat(), "end": year["end"]}
    long = ask(used.operator, "waterfall", compare="52w", **days).json()["rows"]
    assert next(row for row in long if row["bucket"] == "productive")["share_before"] > 0
    off = ask(used.operator, "waterfall", compare="off", **later).json()["rows"]
    assert {row["share_before"] for row in off} == {None}
    refused = ask(used.operator, "waterfall", compare="ever")
    assert "compare is 'ever'; allowed: before, 4w, 52w, off" in refused.json()["errors"][0]["message"]


def test_the_waterfall_says_who_can_change_each_step_as_on_the_page(used: World, ask: Ask) -> None:
    charge_all_gpus(at(0, day=4))
    page = signed_in(used.operator).get(reverse("utilisation"), PAGE_PERIOD)
    shown = {
        row["key"]: ", ".join(each["text"] for each in row["who"]) or row["who_text"]
        for row in page.context["waterfall"]["rows"]
    }
    assert used.vision.member.username in shown["idle"] and shown["unallocated"] == "operators: quotas"
    rows = ask(used.operator, "waterfall").json()["rows"]
    found = {row["bucket"]: row["who_can_change"] for row in rows}
    assert found == {"capacity": None, **shown}
    other = ask(used.people["other team"], "waterfall").json()["rows"]
    assert all(used.vision.member.username not in (row["who_can_change"] or "") for row in other)


def test_the_waste_has_the_trend_that_the_page_draws(used: World, ask: Ask) -> None:
    charge_all_gpus(at(0, day=4))
    rows = ask(used.operator, "waste", waste="person").json()["rows"]
    trends = {row["name"]: row["trend"] for row in rows}
    trend = trends[used.vision.member.username]
    wasted = sum(row[step] for row in rows for step in WASTE_STEPS if row["name"] in trends)
    assert len(trend) == TREND_POINTS and 0 < sum(point or 0.0 for point in trend) <= wasted
    url = reverse("utilisation-csv", args=["waste"])
    answer = signed_in(used.operator).get(url, {**PAGE_PERIOD, "waste": "person"})
    lines = list(csv.DictReader(io.StringIO(b"".join(answer).decode("utf-8-sig"))))
    cell = next(line["trend"] for line in lines if line["name"] == used.vision.member.username)
    assert [None if part == "" else float(part) for part in cell.split(";")] == pytest.approx(
        trend, abs=0.001
    )


def test_the_rows_that_the_page_does_not_list_have_a_trend_with_shown(used: World, ask: Ask) -> None:
    charge_all_gpus(at(0, day=4))
    with mock.patch("portal.reads.utilisation.query.LISTED_ROWS", 1):
        few = [row["trend"] for row in ask(used.operator, "waste", waste="person").json()["rows"]]
        assert [each is not None for each in few] == [True, False]
        every = ask(used.operator, "waste", waste="person", shown="all").json()["rows"]
        assert all(row["trend"] for row in every)


@pytest.mark.parametrize(
    ("answer", "parameters", "field", "message"),
    [
        (
            "waterfall",
            {"end": at(0, day=1).isoformat()},
            "end",
            "allowed: after the start and within 400 days",
        ),
        (
            "waterfall",
            {"end": (at(0) + dt.timedelta(days=401)).isoformat()},
            "end",
            "allowed: after the start and within 400 days",
        ),
        ("waterfall", {"team": "nowhere"}, "team", "team is 'nowhere'; allowed: "),
        ("waterfall", {"person": "nobody"}, "person", "person is 'nobody'; allowed: the user name"),
        ("waterfall", {"colour": "red"}, "colour", "this request has no such field"),
        ("waterfall", {"host": "alpha"}, "host", "host is 'alpha'; allowed: nothing"),
        ("gpu-runs", {"host": "alpha"}, "gpu", "gpu is ''; allowed: a value"),
    ],
)
def test_a_bad_parameter_is_refused_with_field_value_and_what_is_allowed(
    used: World, ask: Ask, answer: str, parameters: dict[str, str], field: str, message: str
) -> None:
    refused = ask(used.operator, answer, **parameters)
    assert refused.status_code == 400
    [error] = refused.json()["errors"]
    assert error["field"] == field and message in error["message"]


def test_a_period_without_end_is_refused(used: World, client_of: Callable[[User], APIClient]) -> None:
    for path in ("utilisation/waterfall/", "usage/", "right-sizing/"):
        refused = client_of(used.operator).get(f"/api/v1/{path}", {"start": at(0).isoformat()})
        assert refused.status_code == 400
        assert "end is ''; allowed: " in refused.json()["errors"][0]["message"]


def test_an_unknown_answer_is_refused_with_the_names(used: World, ask: Ask) -> None:
    refused = ask(used.operator, "weather")
    assert refused.status_code == 404
    assert "answer is 'weather'; allowed: waterfall, waste" in refused.json()["errors"][0]["message"]


def test_the_map_leads_from_a_host_to_its_gpus_a_run_and_its_samples(used: World, ask: Ask) -> None:
    fleet = ask(used.operator, "fleet").json()["rows"]
    busy = {(row["host"], row["start"][11:13]): row["utilisation_percent"] for row in fleet}
    assert busy["alpha", "09"] == 40 and busy["alpha", "12"] is None and busy["beta", "09"] is None
    gpus = ask(used.operator, "host-gpus", host="alpha").json()["rows"]
    assert {row["gpu"]: row["utilisation"] for row in gpus if row["start"].startswith("2026-03-02T09")}[
        1
    ] == 0.4
    (run,) = ask(used.operator, "gpu-runs", host="alpha", gpu="0").json()["rows"]
    assert run["workload"] == run_of(used, used.vision)
    samples = ask(used.operator, "run-samples", host="alpha", gpu="0", run=run["workload"]).json()["rows"]
    power = [row["value"] for row in samples if row["reading"] == "power_w"]
    assert power == [300.0] * 10 + [None] + [300.0] * 10  # the gap stays a gap
    assert not [row for row in samples if row["reading"] == "sm_active"]


@pytest.mark.parametrize(
    ("role", "named", "samples"), [("operator", 1, 200), ("member", 0, 404), ("stranger", 0, 404)]
)
def test_runs_of_other_teams_have_no_name_and_no_samples(
    used: World, ask: Ask, role: str, named: int, samples: int
) -> None:
    user, run = used.people[role], run_of(used, used.language)
    (row,) = ask(user, "gpu-runs", host="alpha", gpu="1").json()["rows"]
    assert sum(row[name] is not None for name in ("workload", "name", "team")) == 3 * named
    assert row["start"] == "2026-03-02T09:00:00+00:00"
    refused = ask(user, "run-samples", host="alpha", gpu="1", run=run)
    assert refused.status_code == samples
    level = {"host": "alpha", "gpu": "1", "run": run}
    page = signed_in(user).get(reverse("utilisation-fleet"), PAGE_PERIOD | level)
    assert page.status_code == samples
    shown = signed_in(user).get(reverse("utilisation-fleet"), PAGE_PERIOD | {"host": "alpha", "gpu": "1"})
    assert (run in shown.content.decode()) is bool(named)


@pytest.mark.parametrize(
    ("role", "dimension", "seen"),
    [
        ("finance", "team", {"Vision", "Language"}),
        ("lead", "team", {"Vision"}),
        ("member", "team", set()),
        ("operator", "team", set()),
        ("member", "user", {"vision-1"}),
        ("lead", "model", set()),
        ("auditor", "model", {"H100-80GB"}),
    ],
)
def test_the_charged_amount_of_a_group_is_shown_to_people_who_may_see_its_charges(
    used: World, ask: Ask, role: str, dimension: str, seen: set[str]
) -> None:
    charge_all_gpus(at(20))
    rows = ask(used.people[role], "use-by", by=dimension).json()["rows"]
    held = {row["name"]: row["charged"] for row in rows if row["held_hours"]}
    assert {name for name, charged in held.items() if charged is not None} == seen


@pytest.mark.parametrize("dimension", ["host", "gpu"])
def test_hosts_of_dedicated_pools_have_no_name_for_other_teams(used: World, ask: Ask, dimension: str) -> None:
    unit = units_of(used.hosts["delta"])[0]
    hold(workload(used, used.vision), unit, at(9), at(11), end_code="finished")
    for role, seen in (("operator", True), ("member", True), ("other team", False), ("stranger", False)):
        rows = ask(used.people[role], "use-by", by=dimension).json()["rows"]
        assert any(row["name"].startswith("delta") for row in rows) is seen, role
        assert any(row["name"].startswith("alpha") for row in rows), role


# -- the pages -----------------------------------------------------------------------------------------------


def level_page(user: User, **levels: str) -> Any:
    return signed_in(user).get(reverse("utilisation-fleet"), PAGE_PERIOD | levels)


def test_each_level_names_the_levels_above_it(used: World) -> None:
    run = run_of(used, used.vision)
    for levels, crumbs in (
        ({}, ["Utilisation"]),
        ({"first": "alpha", "last": "beta"}, ["Utilisation", "Fleet"]),
        ({"host": "alpha"}, ["Utilisation", "Fleet"]),
        ({"host": "alpha", "gpu": "0"}, ["Utilisation", "Fleet", "alpha"]),
        ({"host": "alpha", "gpu": "0", "run": run}, ["Utilisation", "Fleet", "alpha", "GPU 0"]),
    ):
        page = level_page(used.operator, **levels)
        assert page.status_code == 200
        assert [crumb["text"] for crumb in page.context["crumbs"]] == crumbs
        for crumb in page.context["crumbs"]:
            assert signed_in(used.operator).get(crumb["url"]).status_code == 200


@pytest.mark.parametrize(
    ("levels", "says"),
    [
        ({"gpu": "0"}, "gpu is '0'; allowed: together with host."),
        ({"host": "alpha", "run": "x"}, "run is 'x'; allowed: together with host and gpu."),
        ({"host": "nowhere"}, "host is 'nowhere'; allowed: the name of a host that you may see"),
        ({"host": "alpha", "gpu": "99"}, "gpu is '99'; allowed: 0, 1"),
        ({"host": "alpha", "gpu": "9" * 5_000}, "...; allowed: 0, 1"),
        ({"host": "alpha", "gpu": "0", "run": "x"}, "run is 'x'; allowed: the id of a workload"),
        ({"team": "vision"}, "'team' is not a parameter of this page; allowed: period, start"),
        ({"end": "2027-06-01"}, "end is '2027-06-01'; allowed: after the start and within 400 days"),
    ],
)
def test_a_level_that_does_not_exist_is_refused(used: World, levels: dict[str, str], says: str) -> None:
    answer = level_page(used.operator, **levels)
    assert answer.status_code == 404
    assert says in unescape(answer.content.decode())


def lines_of(user: User, address: str) -> list[str]:
    answer = signed_in(user).get(address)
    assert answer.status_code == 200, address
    assert answer["Content-Type"].startswith("text/csv")
    return b"".join(answer).decode().splitlines()


@pytest.mark.parametrize(
    ("levels", "answer", "files"),
    [
        ((), "fleet", []),
        (("first", "last"), "fleet", []),
        (("host",), "host-gpus", []),
        (("host", "gpu"), "gpu-runs", ["gpu-hours"]),
        (("host", "gpu", "run"), "run-samples", ["samples"]),
    ],
)
def test_each_level_offers_its_data_as_csv(
    used: World, ask: Ask, levels: tuple[str, ...], answer: str, files: list[str]
) -> None:
    values = {"first": "alpha", "last": "beta", "host": "alpha", "gpu": "0"}
    given = {name: values.get(name) or run_of(used, used.vision) for name in levels}
    page = level_page(used.operator, **given)
    assert page.context["charts"]
    for entry in page.context["charts"]:
        assert entry["csv"].startswith(f"/utilisation/fleet/{answer}.csv?start=2026-03-02")
    head, *rows = lines_of(used.operator, page.context["charts"][0]["csv"])
    asked = {name: value for name, value in given.items() if name not in ("first", "last")}
    body = ask(used.operator, answer, **asked).json()
    assert head.split(",") == body["columns"]
    if "first" not in levels:
        assert len(rows) == len(body["rows"]) > 0
    else:
        assert {row.split(",")[0] for row in rows} == {"alpha", "beta"}
    names = [Path(file["url"].partition("?")[0]).stem for file in page.context["files"]]
    assert names == files
    for file in page.context["files"]:
        assert f'href="{escape(file["url"])}"' in page.content.decode()


def test_the_file_of_a_run_has_each_stored_sample_of_its_gpu_only(used: World) -> None:
    run = run_of(used, used.vision)
    page = level_page(used.operator, host="alpha", gpu="0", run=run)
    [file] = page.context["files"]
    head, *rows, last = lines_of(used.operator, file["url"])
    assert len(rows) == 20 and last.startswith("# rows: 20 sha256: ")
    columns = head.split(",")
    cells = dict(zip(columns, rows[0].split(","), strict=True))
    assert (cells["host"], cells["gpu"], cells["workload"], cells["power_w"]) == ("alpha", "0", run, "300")
    hours = level_page(used.operator, host="alpha", gpu="0").context["files"][0]["url"]
    shares = {line.split(",")[0]: line.split(",")[1] for line in lines_of(used.operator, hours)[1:]}
    assert shares["2026-03-02T09:00:00+00:00"] == "0.4"
    assert shares["2026-03-02T12:00:00+00:00"] == ""  # not measured


@pytest.mark.parametrize(
    ("answer", "levels", "says"),
    [
        ("weather", {}, "chart is 'weather'; allowed: fleet, host-gpus"),
        ("host-gpus", {}, "host is ''; allowed: a value, because the answer host-gpus needs it."),
        ("host-gpus", {"host": "alpha", "gpu": "0"}, "gpu is '0'; allowed: nothing"),
        ("samples", {"host": "alpha", "gpu": "0"}, "run is ''; allowed: a value"),
        ("fleet", {"host": "alpha"}, "host is 'alpha'; allowed: nothing"),
        ("gpu-hours", {"host": "alpha", "gpu": "99"}, "gpu is '99'; allowed: 0, 1"),
    ],
)
def test_a_file_of_a_level_that_does_not_exist_is_refused(
    used: World, answer: str, levels: dict[str, str], says: str
) -> None:
    address = reverse("utilisation-level-csv", args=[answer])
    refused = signed_in(used.operator).get(address, PAGE_PERIOD | levels)
    assert refused.status_code == 404
    assert says in unescape(refused.content.decode())


def test_samples_of_other_teams_are_in_no_file(used: World) -> None:
    level = {"host": "alpha", "gpu": "1", "run": run_of(used, used.language)}
    for answer in ("samples", "run-samples"):
        address = reverse("utilisation-level-csv", args=[answer])
        refused = signed_in(used.vision.member).get(address, PAGE_PERIOD | level)
        assert refused.status_code == 404


# -- the requests behind the waits ---------------------------------------------------------------------------


@pytest.fixture
def waited(rates: World) -> World:
    """Return a world with requests of one and of two GPUs: some started, one waits, one ended unstarted."""
    units = units_of(rates.hosts["alpha"])
    for number, team in enumerate((rates.vision, rates.vision, rates.language)):
        work = workload(rates, team, name=f"started-{number}", submitted_at=at(8, 10 * number))
        hold(work, units[number], at(9), at(11), end_code="finished")
    workload(rates, rates.vision, name="waiting", state="queued", submitted_at=at(10))
    workload(rates, rates.vision, name="given-up", state="ended", outcome="cancelled", submitted_at=at(10))
    workload(rates, rates.vision, name="pair", units=2, state="queued", submitted_at=at(10))
    return rates


def test_a_bar_of_waits_opens_the_requests_behind_it(waited: World) -> None:
    page = signed_in(waited.operator).get(reverse("utilisation"), PAGE_PERIOD | {"team": "vision"})
    chart = next(each["chart"] for each in page.context["charts"] if each["name"] == "waits")
    addresses = {row[0]["text"]: row[0]["url"] for row in chart.rows}
    bars = {address for trace in chart.figure["data"] for address in trace["customdata"]}
    assert bars == {addresses["1 GPU"]}  # no request of another size has started
    opened = signed_in(waited.operator).get(addresses["1 GPU"])
    assert opened.status_code == 200
    names = [row["work"].name for row in opened.context["rows"]]
    assert names == ["waiting", "started-0", "started-1", "given-up"]
    assert [row["waited"] for row in opened.context["rows"]] == [
        "still waits",
        "1 h",
        "50 min",
        "ended without a GPU",
    ]
    [started] = [row for row in chart.rows if row[0]["text"] == "1 GPU"]
    assert started[1] == "2"  # as many as the list has
    assert "team=vision" in addresses["2 GPUs"]


def test_requests_of_other_teams_are_counted_and_not_named(waited: World) -> None:
    address = reverse("utilisation-requests")
    member = signed_in(waited.vision.member).get(address, PAGE_PERIOD | {"size": "1"})
    shown = member.content.decode()
    assert "5 requests were submitted in this period." in shown and "Left out: 1 of other teams." in shown
    assert "started-2" not in shown and "started-1" in shown
    csv = signed_in(waited.vision.member).get(address, PAGE_PERIOD | {"size": "1", "format": "csv"})
    lines = b"".join(csv).decode().splitlines()
    assert lines[0].split(",") == list(LEVEL_ANSWERS["wait-requests"].columns)
    assert [line.split(",")[1] for line in lines[1:]] == ["waiting", "started-0", "started-1", "given-up"]


@pytest.mark.parametrize(
    ("total", "text"), [(0, "0 requests were"), (1, "1 request was"), (5_000, "5,000 req")]
)
def test_the_number_of_requests_is_a_sentence(total: int, text: str) -> None:
    assert requests_submitted(total).startswith(text)


def test_the_requests_are_an_answer_of_the_api(waited: World, client_of: Callable[[User], APIClient]) -> None:
    ask = client_of(waited.operator).get
    rows = ask("/api/v1/utilisation/wait-requests/", PERIOD | {"size": "2"}).json()["rows"]
    assert [(row["name"], row["still_waiting"], row["waited_seconds"]) for row in rows] == [
        ("pair", True, None)
    ]
    missing = ask("/api/v1/utilisation/wait-requests/", PERIOD)
    assert "size is ''; allowed: a value" in missing.json()["errors"][0]["message"]


@pytest.mark.parametrize("size", ["", "0", "-1", "two", "99999", "²"])
def test_a_size_that_no_request_can_have_is_refused(waited: World, size: str) -> None:
    for more in ({}, {"format": "csv"}):
        refused = signed_in(waited.operator).get(
            reverse("utilisation-requests"), PAGE_PERIOD | {"size": size, **more}
        )
        assert refused.status_code == 404
        assert "allowed: a whole number of GPUs from 1 to 10,000." in unescape(refused.content.decode())


def test_a_line_is_not_drawn_across_a_gap(used: World) -> None:
    page = level_page(used.operator, host="alpha", gpu="0", run=run_of(used, used.vision))
    (trace,) = page.context["charts"][0]["chart"].figure["data"]
    assert trace["connectgaps"] is False and trace["y"].count(None) == 1


def test_every_reading_of_a_sample_has_a_series_and_a_chart(used: World, ask: Ask) -> None:
    assert set(RAW_READINGS) == set(drill_texts.READING_LABELS)
    masks_and_strays = {"throttle_reasons", "stray_processes"}
    counters = {
        name for name in READING_KINDS | SPARSE_READING_KINDS if name.endswith(("_bytes", "energy_mj"))
    }
    assert set(RAW_READINGS) == set(READING_KINDS | SPARSE_READING_KINDS) - counters - masks_and_strays
    values = dict.fromkeys(RAW_READINGS, 7)
    Sample.objects.filter(ts=at(9)).update(**values)
    run = run_of(used, used.vision)
    rows = ask(used.operator, "run-samples", host="alpha", gpu="0", run=run).json()["rows"]
    assert {row["reading"] for row in rows} == set(RAW_READINGS)
    page = level_page(used.operator, host="alpha", gpu="0", run=run)
    titles = [each["chart"].title for each in page.context["charts"]]
    assert titles == [drill_texts.READING_LABELS[name][0] for name in RAW_READINGS]


def test_many_hosts_are_folded_into_few_rows(used: World) -> None:
    with (
        mock.patch("portal.reads.utilisation.fleet_map.MAX_ROWS", 2),
        mock.patch("portal.reads.utilisation.fleet_map.MAX_STEPS", 6),
    ):
        page = level_page(used.operator)
        figure = page.context["charts"][0]["chart"].figure["data"][0]
        assert len(figure["z"]) == 2 and len(figure["x"]) == 6
        assert figure["z"][0][2] == 40  # 08:00 to 12:00; hours without samples do not count
        assert signed_in(used.operator).get(figure["meta"]["row"][0]).status_code == 200


def test_the_command_line_documents_every_answer(root: Path) -> None:
    text = (root / "docs" / "cli.md").read_text()
    assert not [name for name in (*ANSWERS, *LEVEL_ANSWERS) if f"`{name}`" not in text]


def test_an_hour_of_the_map_weighs_its_measured_gpu_minutes(used: World) -> None:
    hours = Rollup.objects.filter(resolution=Rollup.Resolution.HOUR, unit__gpu__host__name="alpha")
    bucket = hours.filter(covered_seconds__gt=0).order_by("bucket").values_list("bucket", flat=True)[0]
    rows = hours.filter(bucket=bucket).values_list("covered_seconds", "utilisation_seconds")
    seconds = sum(covered for covered, utilisation in rows if utilisation is not None)
    start = bucket.replace(hour=0)
    day = fleet_reads.host_days([start])[start]
    place = day.hosts.index(Host.objects.get(name="alpha").pk)
    assert day.weight[place, bucket.hour] == round(seconds / 60) > 0


def test_the_map_of_10_000_gpus_is_small() -> None:
    import numpy as np

    busy = np.random.default_rng(1).integers(0, 101, (1250, 24 * 62)).astype(np.uint8)
    cells = fleet_reads.folded(busy, np.full(busy.shape, 480, np.uint16), 14, 16)
    assert cells.shape == (90, 93) and int(cells.max()) <= 100
