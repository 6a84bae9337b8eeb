"""Test the report of a run on its page, in the API and in its CSV files, and the charts of the tab Use."""

from __future__ import annotations

import csv
import html
import io
import re
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from html import unescape
from typing import Any
from urllib.parse import unquote

import pytest
from django.urls import reverse
from rest_framework.test import APIClient

from portal.models import NoticeMark, Notification, User
from portal.notices import delivery
from portal.reads.money.cost_totals import prices, workload_costs
from portal.reads.work.priced_times import priced_times
from portal.reads.work.run_reports import EarlierStart, ReportGap, RunReportDetails, run_report
from portal.web.work import use_charts
from portal.wording import run_report_texts
from portal.wording.chargeback.charge_scope_texts import HIDDEN_COSTS
from portal.wording.notices import notice_texts
from portal.wording.pages import run_report_pages
from scheduler.models import Run, Workload
from telemetry.core.run_report import SERIES
from telemetry.models import Charge, RunReport
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.chargeback import charges_by
from telemetry.reports import stored
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.portal.web.work_samples import signed_in
from tests.telemetry.rows import at, begin_charges_at, hold, rates, workload
from tests.telemetry.test_rollups import write_samples
from tests.telemetry.test_run_reports import forget_rollups, held_workload
from tests.world import World, units_of, world_fixture

__all__ = ["rates"]
pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def write_ran(world: World) -> Workload:
    """Return a job that held 4 GPUs from 9:00 to 10:00 and 10:30 to 11:00, and used one of them."""
    begin_charges_at(world, at(9))
    units = units_of(world.hosts["alpha"])[:4]
    job = held_workload(world, units, [(at(9), at(10)), (at(10, 30), at(11))])
    write_samples(units[0], at(9), 720)
    for unit in units[1:]:
        write_samples(unit, at(9), 720, utilisation=0, processes=0)
    roll_up_due_buckets(at(11, 10))
    charge_all_gpus(at(12))
    return job


ran = world_fixture(write_ran, after=rates)


def details_of(job: Workload) -> RunReportDetails:
    found = run_report(job, job.owner, at(12))
    assert found is not None
    return found


def page_of(world: World, job: Workload, role: str = "member") -> Any:
    return signed_in(world.people[role]).get(reverse("workload-report", args=[job.public_id]))


def csv_of(world: World, job: Workload, table: str) -> list[dict[str, str]]:
    url = reverse("workload-report-csv", args=[job.public_id])
    answer = signed_in(world.vision.member).get(url, {"table": table})
    return list(csv.DictReader(io.StringIO(b"".join(answer).decode("utf-8-sig"))))


def test_the_cost_is_the_one_of_the_chargeback_page(rates: World, ran: Workload) -> None:
    details = details_of(ran)
    shown = {group.key: group.charged for group in charges_by("workload", at(9).date().replace(day=1)).groups}
    assert details.cost == {"EUR": shown[ran.pk]} == workload_costs([ran.pk], at(12), prices(at(12)))[ran.pk]
    assert sum(Decimal(row["charged"]) for row in csv_of(rates, ran, "charges")) == shown[ran.pk]


# Whether a person sees the charges of the work of another member of vision.
SEES_CHARGES = {"member": True, "lead": True, "auditor": True, "team mate": False, "operator": False}


@pytest.mark.parametrize("role", SEES_CHARGES)
def test_only_people_who_see_the_charges_of_a_workload_see_its_cost(
    rates: World, ran: Workload, role: str
) -> None:
    client, sees = signed_in(rates.people[role]), SEES_CHARGES[role]
    cost = f"{details_of(ran).cost['EUR']:,.2f}"  # type: ignore[index]
    job = reverse("job", args=[ran.public_id])
    for address in (
        f"{job}?tab=cost",
        job,
        reverse("workload-report", args=[ran.public_id]),
        reverse("jobs"),
    ):
        text = html.unescape(client.get(address).content.decode())
        assert (cost in text) == sees, address
        assert (HIDDEN_COSTS in text) != sees, address
    report = client.get(f"/api/v1/workloads/{ran.public_id}/report/").json()
    assert (report["cost"] is None) == report["cost_hidden"] == (not sees)
    assert report["charged_gpu_hours"] == details_of(ran).charged_gpu_hours > 0
    file = client.get(reverse("workload-report-csv", args=[ran.public_id]), {"table": "charges"})
    assert file.status_code == (200 if sees else 403)


def test_the_owner_gets_one_notice_with_the_first_advice_of_the_report(rates: World, ran: Workload) -> None:
    stored.refresh_reports(at(11, 15))
    delivery.write_notices(at(11, 16))
    (notice,) = Notification.objects.filter(kind="advice")
    assert notice.user_id == ran.owner_id
    sentence = notice_texts.notice_sentence(notice.kind, notice.numbers)
    assert sentence.startswith(f"Next time for {ran.name}: Ask for 1 GPU instead of 4. At most 1 of 4 GPUs")
    RunReport.objects.update(made_at=at(11, 20))  # written again
    assert delivery.write_notices(at(11, 21)) == 0
    Notification.objects.filter(kind="advice").delete()
    RunReport.objects.update(made_at=at(12, day=4))  # two days after the end
    NoticeMark.objects.update(looked_until=at(11, 59, day=4))
    assert delivery.write_notices(at(12, 1, day=4)) == 0
    notice.save(force_insert=True)
    page = signed_in(ran.owner).get(reverse("notifications")).content.decode()
    # The notices about the end and about the advice are one matter.
    assert page.count(reverse("workload-report", args=[ran.public_id])) == 1


def test_a_preemption_is_a_gap_and_a_wait(rates: World, ran: Workload) -> None:
    details = details_of(ran)
    [gap] = details.gaps
    assert (gap.start, gap.end, gap.preempted) == (at(10), at(10, 30), True)
    assert (details.first_wait, details.gap_time) == (timedelta(minutes=5), timedelta(minutes=30))
    figure = use_charts.use_figure(details.report, details.gaps)
    [shape] = figure["layout"]["shapes"]
    assert (shape["x0"][-8:], shape["x1"][-8:]) == ("10:00:00", "10:30:00")
    assert "preempted 10:00 to 10:30" in shape["label"]["text"]


def test_the_chart_marks_checkpoints_and_the_time_that_was_redone(rates: World, ran: Workload) -> None:
    ran.runs.filter(attempt=1).update(checkpoint_at=at(9, 40))
    ran.runs.filter(attempt=2).update(checkpoint_at=at(10, 50))
    shapes = page_of(rates, ran).context["chart"]["figure"]["layout"]["shapes"]
    found = [(shape["label"]["text"], shape["x0"][-8:], shape["x1"][-8:]) for shape in shapes[1:]]
    assert found == [
        ("checkpoint", "09:40:00", "09:40:00"),
        ("redone", "09:40:00", "10:00:00"),  # up to the preemption
        ("checkpoint", "10:50:00", "10:50:00"),
    ]


def test_each_advice_opens_the_figures_on_which_it_rests(rates: World, ran: Workload) -> None:
    assert set(run_report_pages.ADVICE_ANCHORS) == set(run_report_texts.ADVICE_HEADLINES)
    page = page_of(rates, ran).content.decode()
    advice = page.partition('class="report-advice"')[2].partition("</section>")[0]
    anchors = set(re.findall(r'href="#(\w+)"', advice))
    assert {"gpus", "life", "cost"} <= anchors
    assert all(f'id="{anchor}"' in page for anchor in anchors)


def test_the_page_shows_what_to_ask_for_with_the_cost_of_fewer_gpus(rates: World, ran: Workload) -> None:
    page = page_of(rates, ran).content.decode()
    details = details_of(ran)
    assert details.cost is not None
    assert "Ask for 1 GPU instead of 4" in page
    less = details.cost["EUR"] / 4
    assert f"would have cost €{less:.2f} instead of €{details.cost['EUR']:.2f}" in page
    for word in ("not measured", "GPU 0", "Final" if details.is_final else "Samples may still arrive"):
        assert word in page


def test_the_form_for_the_next_request_has_the_advice(rates: World, ran: Workload) -> None:
    page = page_of(rates, ran)
    numbers = {advice.code: advice.numbers for advice in details_of(ran).report.advice}
    form = signed_in(rates.vision.member).get(page.context["advised_url"]).context["form"]
    assert form.initial["count"] == "1" and form.initial["kind"] == "job"
    assert form.initial["length"] == numbers["shorter_limit"]["suggested_seconds"] // 60
    assert form.initial["length_unit"] == "minutes"
    Workload.objects.filter(pk=ran.pk).update(kind="notebook")
    assert page_of(rates, ran).context["advised_url"] == ""


def test_unmeasured_values_are_not_shown_as_zero(rates: World, ran: Workload) -> None:
    details = details_of(ran)
    assert (details.cpu_seconds, details.memory_peak_mib, details.energy_kwh, details.sm_active) == (
        None,
    ) * 4
    context = page_of(rates, ran).context
    used = {row[0]: row[1:] for row in context["resources"]["rows"]}
    assert used["CPU cores, each host"][0] == used["Memory, each host"][1] == "not measured"
    assert used["Energy in all"][1] == "not measured"
    assert {row[4] for row in context["gpu_table"]["rows"]} == {"not measured"}


def test_cpu_and_memory_of_the_runs_are_shown(rates: World, ran: Workload) -> None:
    Run.objects.filter(workload=ran).update(cpu_seconds=5400, memory_peak_mib=2048)
    used = {row[0]: row[1:] for row in page_of(rates, ran).context["resources"]["rows"]}
    assert used["CPU cores, each host"][0] == "2.0"  # 10,800 CPU seconds in 5,400 seconds
    assert used["Memory, each host"][1] == "2.0 GiB"


def test_gaps_stay_gaps_in_the_chart_and_every_hover_has_a_unit(rates: World, ran: Workload) -> None:
    details = details_of(ran)
    figure = use_charts.use_figure(details.report, details.gaps)
    for trace in figure["data"]:
        assert "%{" in trace["hovertemplate"] and trace["hovertemplate"].endswith("<extra></extra>")
        if trace["type"] == "scatter":
            assert trace["connectgaps"] is False
            assert any(unit in trace["hovertemplate"] for unit in ("%", "GiB", " W"))
    assert figure["layout"]["hovermode"] == "closest"
    strip = figure["data"][0]
    assert len(strip["z"]) == len(set(strip["y"])) == 4
    at_gap = details.report.points.index(int(at(10, 10).timestamp()))
    assert [row[at_gap] for row in strip["z"]] == [None] * 4


def test_no_line_crosses_a_gap_that_is_shorter_than_a_point() -> None:
    gap = ReportGap(at(9, 20), at(9, 40), "evicted_for_guarantee", preempted=True)
    times = ["2026-03-02T08:30:00", "2026-03-02T10:30:00"]
    found = use_charts._with_breaks(times, ["a", "b"], [1.0, 2.0], [gap])
    assert found == ([times[0], "2026-03-02T09:30:00", times[1]], ["a", "", "b"], [1.0, None, 2.0])


def test_the_table_and_the_csv_have_the_figures_of_the_chart(rates: World, ran: Workload) -> None:
    details = details_of(ran)
    table = use_charts.use_table(details.report, "x")
    rows = csv_of(rates, ran, "points")
    assert len(table["rows"]) == len(details.report.points)
    assert len(rows) == len(details.report.points) * 4
    assert list(rows[0]) == ["start", "seconds", "host", "gpu", "profile", *SERIES]
    at_gap = details.report.points.index(int(at(10, 10).timestamp())) * 4
    assert [rows[n]["utilisation"] for n in (4, 5, at_gap)] == ["50.0", "0.0", ""]
    assert len(csv_of(rates, ran, "gpus")) == 4


def test_many_gpus_are_drawn_as_mean_and_highest() -> None:
    from tests.telemetry.test_run_report_core import unit

    units = [unit(number, busy=[number * 5.0, None]) for number in range(9)]
    for each in units:
        each.series["power_w"] = [each.gpu * 100.0, None]
    lines = use_charts._lines(units, "power_w")
    assert [(label, values) for label, _, values in lines] == [
        ("mean of 9 GPUs", [400.0, None]),
        ("highest of 9 GPUs", [800.0, None]),
    ]


@pytest.mark.parametrize(("count", "has_legend"), [(1, False), (4, False), (5, True), (8, True), (9, False)])
def test_a_chart_of_five_to_eight_gpus_has_a_legend_with_each_gpu_once(
    rates: World, ran: Workload, count: int, has_legend: bool
) -> None:
    report = details_of(ran).report
    units = [replace(report.units[0], gpu=number) for number in range(count)]
    figure = use_charts.use_figure(replace(report, units=units), [])
    assert figure["layout"]["showlegend"] is has_legend
    lines = [trace for trace in figure["data"] if trace["type"] == "scatter"]
    if has_legend:
        named = [trace["name"] for trace in lines if trace["showlegend"]]
        assert named == [f"GPU {number}" for number in range(count)]
        # A click on the entry of a GPU hides its lines in all tracks.
        assert {trace["legendgroup"] for trace in lines} >= set(named)
        colours = {trace["meta"]["colour"] for trace in lines if trace["name"] in named}
        assert len(colours) == count


def test_very_many_gpus_have_a_row_for_each_host(rates: World, ran: Workload) -> None:
    report = details_of(ran).report
    many = replace(report, units=[replace(report.units[0], host=f"h{n % 2}", gpu=n) for n in range(66)])
    strip = use_charts.use_figure(many, [])["data"][0]
    assert strip["y"] == ["h0, 33 GPUs", "h1, 33 GPUs"]
    assert strip["z"][0] == report.units[0].series["busy"]


@pytest.mark.long
def test_one_of_many_gpus_can_be_chosen_for_a_line_of_its_own(
    rates: World, ran: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = reverse("workload-report", args=[ran.public_id])
    client = signed_in(rates.vision.member)
    few = client.get(url, {"gpu": "1"})
    assert few.status_code == 404 and "gpu is '1'; allowed: nothing" in unescape(few.content.decode())
    assert client.get(url).context["unit_menu"] is None
    monkeypatch.setattr(use_charts, "MAX_LINES", 3)
    menu = client.get(url).context["unit_menu"]
    assert [choice["label"] for choice in menu["choices"]] == [
        "Mean and highest",
        *(f"GPU {n}" for n in range(4)),
    ]
    page = client.get(menu["choices"][2]["url"].partition("#")[0])
    assert page.context["unit_menu"]["value"] == "GPU 1"
    lines = {
        trace["name"]: trace
        for trace in page.context["chart"]["figure"]["data"][1:]
        if trace["yaxis"] == "y2"
    }
    assert set(lines) == {"mean of 4 GPUs", "highest of 4 GPUs", "GPU 1"}
    for given in ("0", "5", "x", "9" * 30):
        refused = client.get(url, {"gpu": given})
        assert refused.status_code == 404 and "allowed: 1 to 4" in refused.content.decode()


def test_an_unknown_table_is_refused(rates: World, ran: Workload) -> None:
    url = reverse("workload-report-csv", args=[ran.public_id])
    answer = signed_in(rates.vision.member).get(url, {"table": "gpu"})
    assert answer.status_code == 404
    assert "allowed: points, hosts, gpus, charges" in answer.content.decode()


def test_a_workload_that_held_nothing_has_a_page_that_says_so(rates: World) -> None:
    job = workload(rates, rates.vision, state="queued")
    page = page_of(rates, job)
    assert page.status_code == 200 and "It has held no GPU" in page.content.decode()
    assert csv_of(rates, job, "points") == []
    client = APIClient()
    client.force_authenticate(rates.vision.member)
    answer = client.get(f"/api/v1/workloads/{job.public_id}/report/")
    assert answer.status_code == 400
    assert "has held no GPU, so it has no report" in answer.json()["errors"][0]["message"]


def test_people_who_may_not_see_the_workload_do_not_see_its_report(rates: World, ran: Workload) -> None:
    assert page_of(rates, ran, "other team").status_code == 404
    assert page_of(rates, ran, "team mate").status_code == 200


def test_the_api_returns_the_figures_of_the_page(rates: World, ran: Workload) -> None:
    client = APIClient()
    client.force_authenticate(rates.vision.member)
    body = client.get(f"/api/v1/workloads/{ran.public_id}/report/").json()
    details = details_of(ran)
    assert details.cost is not None
    assert body["cost"] == [{"currency": "EUR", "amount": str(details.cost["EUR"])}]
    assert (body["waited_seconds"], body["gap_seconds"]) == (300, 1800)
    assert [gap["preempted"] for gap in body["gaps"]] == [True]
    assert (body["busy_at_once"], body["asked_gpus"], body["final"]) == (1, 4, False)
    assert (body["cpu_seconds"], body["energy_kwh"]) == (None, None)
    assert [advice["code"] for advice in body["advice"]] == ["fewer_gpus", "shorter_limit"]
    assert len(body["gpus"]) == 4
    assert len(body["gpus"][0]["series"]["busy"]) == len(body["points"])


def test_the_stored_report_is_shown_after_the_rollups_are_gone(
    rates: World, ran: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.refresh_reports(at(11, 20))
    before = page_of(rates, ran).context["gpu_table"]
    forget_rollups(monkeypatch, 60, 3600)
    assert page_of(rates, ran).context["gpu_table"] == before


def test_the_tab_named_use_has_the_chart_of_the_report(rates: World, ran: Workload) -> None:
    client = signed_in(rates.vision.member)
    tab = client.get(reverse("job", args=[ran.public_id]), {"tab": "use"})
    assert tab.context["chart"] == page_of(rates, ran).context["chart"]
    assert reverse("workload-report", args=[ran.public_id]) in tab.content.decode()


def test_only_the_chart_of_a_running_job_reads_new_figures(rates: World, ran: Workload) -> None:
    url, client = reverse("job", args=[ran.public_id]), signed_in(rates.vision.member)
    part = "tab=use&amp;part=chart"
    assert part not in client.get(url, {"tab": "use"}).content.decode()
    Workload.objects.filter(pk=ran.pk).update(state="running", ended_at=None)
    assert part in client.get(url, {"tab": "use"}).content.decode()
    figures = client.get(url, {"tab": "use", "part": "chart"}).content.decode()
    assert 'id="figure-run"' in figures and "<table" in figures and "<nav" not in figures


def test_the_notice_of_the_end_links_to_the_report(rates: World, ran: Workload) -> None:
    for kind in ("ended", "started"):
        Notification.objects.create(
            user=rates.vision.member, kind=kind, numbers={}, workload=ran, source=kind, at=at(11)
        )
    page = signed_in(rates.vision.member).get(reverse("notifications")).content.decode()
    assert page.count(reverse("workload-report", args=[ran.public_id])) == 1
    client = APIClient()
    client.force_authenticate(rates.vision.member)
    found = {row["kind"]: row["report"] for row in client.get("/api/v1/notifications/").json()["results"]}
    assert found == {"ended": f"/api/v1/workloads/{ran.public_id}/report/", "started": None}


def test_each_charge_line_is_price_times_gpus_times_seconds(rates: World, ran: Workload) -> None:
    times = details_of(ran).priced_times
    assert [(time.start, time.end) for time in times if time.bucket == "used"][-1] == (at(10, 30), at(11))
    assert {time.gpus for time in times} == {4.0}
    for time in times:
        price = time.price if time.bucket == "used" else Decimal(0)
        assert price is not None
        exact = price * Decimal(time.gpus) * time.seconds / 3600
        assert time.charged == pytest.approx(exact, abs=Decimal("0.0001"))
    charged = sum(time.charged for time in times)
    assert details_of(ran).cost == {"EUR": pytest.approx(charged, abs=Decimal("0.01"))}
    assert sum(time.slot_seconds for time in times) == 840 * 4 * 5_400
    page = unescape(page_of(rates, ran).content.decode())
    assert run_report_pages.PRICES_FINDING in page and "02 Mar 10:30:00" in page
    rows = csv_of(rates, ran, "prices")
    assert [Decimal(row["charged"]) for row in rows] == [time.charged for time in times]
    lines = signed_in(ran.owner).get(f"/api/v1/workloads/{ran.public_id}/report/").json()["charge_lines"]
    assert [(line["seconds"], line["gpus"]) for line in lines] == [(time.seconds, 4.0) for time in times]


def test_a_corrected_charge_line_is_replaced_and_not_counted_twice(rates: World, ran: Workload) -> None:
    before = details_of(ran).priced_times
    line = Charge.objects.filter(workload=ran, reversal=False).order_by("start").first()
    assert line is not None
    reversal = Charge.objects.get(pk=line.pk)
    reversal.pk, reversal.reversal, reversal.corrects = None, True, line
    reversal.slots, reversal.slot_seconds = -line.slots, -line.slot_seconds
    reversal.cost, reversal.charged = -line.cost, -line.charged
    reversal.save(force_insert=True)
    after = priced_times(ran.pk)
    lost = sum(time.slot_seconds for time in before) - sum(time.slot_seconds for time in after)
    assert lost == line.slot_seconds


@pytest.mark.parametrize("role", ["team mate", "operator"])
def test_the_charge_lines_are_hidden_from_people_who_do_not_see_the_charges(
    rates: World, ran: Workload, role: str
) -> None:
    client = signed_in(rates.people[role])
    assert run_report_pages.PRICES_FINDING not in unescape(page_of(rates, ran, role).content.decode())
    assert client.get(f"/api/v1/workloads/{ran.public_id}/report/").json()["charge_lines"] == []
    url = reverse("workload-report-csv", args=[ran.public_id])
    assert client.get(url, {"table": "prices"}).status_code == 403


def test_the_report_compares_the_wait_with_that_of_requests_for_fewer_gpus(
    rates: World, ran: Workload
) -> None:
    unit = units_of(rates.hosts["beta"])[0]
    for day in range(1, 7):
        start = at(8) - timedelta(days=day)
        hold(
            workload(rates, rates.vision, submitted_at=start),
            unit,
            start + timedelta(minutes=1),
            start + HOUR,
        )
    others = [
        {"submitted_at": at(8) - timedelta(days=60)},  # too long ago
        {"submitted_at": at(8) - timedelta(days=8), "not_before": at(8)},
        {"submitted_at": at(8) - timedelta(days=9), "units": 2},
        {"submitted_at": at(8) - timedelta(days=10), "models_wanted": ["A100 80GB"]},
    ]
    for fields in others:
        start = fields["submitted_at"]
        work = workload(rates, rates.vision, **fields)
        hold(work, unit, start + timedelta(minutes=4), start + HOUR)
    earlier = details_of(ran).earlier_start
    assert earlier == EarlierStart(gpus=1, requests=6, median_seconds=60.0, waited_seconds=300.0)
    sentence = (
        "In the 4 weeks before, 6 requests for 1 GPU in this pool waited 1 minute (median). "
        "This run waited 5 minutes, so it might have started 4 minutes earlier."
    )
    assert sentence in unescape(page_of(rates, ran).content.decode())
    answer = signed_in(ran.owner).get(f"/api/v1/workloads/{ran.public_id}/report/").json()
    assert answer["earlier_start"]["earlier_seconds"] == 240.0
    Workload.objects.filter(submitted_at__lt=at(0) - timedelta(days=4)).update(submitted_at=at(0, day=5))
    assert details_of(ran).earlier_start is None  # four requests are too few


def test_requests_for_fewer_gpus_that_waited_longer_promise_no_earlier_start(
    rates: World, ran: Workload
) -> None:
    unit = units_of(rates.hosts["beta"])[0]
    for day in range(1, 7):
        start = at(8) - timedelta(days=day)
        work = workload(rates, rates.vision, submitted_at=start)
        hold(work, unit, start + timedelta(minutes=6), start + HOUR)
    assert details_of(ran).earlier_start is None


def test_other_people_can_write_to_the_owner_about_the_report(rates: World, ran: Workload) -> None:
    User.objects.filter(pk=ran.owner_id).update(email="one@example.org")
    for role, has_message in (("lead", True), ("operator", True), ("member", False)):
        message = page_of(rates, ran, role).context["message"]
        assert (message is not None) == has_message, role
    assert message is None
    url = unquote(page_of(rates, ran, "lead").context["message"]["url"])
    assert url.startswith(f"mailto:one@example.org?subject=Report of {ran.name}&body=Your run {ran.name} has")
    assert "- Ask for 1 GPU instead of 4. At most 1 of 4 GPUs" in url
    assert url.endswith(reverse("workload-report", args=[ran.public_id]))
    User.objects.filter(pk=ran.owner_id).update(email="")
    assert page_of(rates, ran, "lead").context["message"] is None
