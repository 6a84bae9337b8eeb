"""Test the advice for repeated work: its groups, the GPU-hours that it saves, and the money."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.urls import reverse

from portal.models import Membership
from portal.reads.utilisation.right_sizing import sizing_advice
from portal.reads.work.run_reports import RunReportDetails, run_report
from telemetry.core.capacity.right_sizing import ReportedRun, right_sizings, work_name
from telemetry.models import RunReport, RunReportUnit
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.usage_filters import UsageFilters
from tests.portal.web.test_manage_money_pages import signed_in
from tests.telemetry.rows import at, hold, rates, workload
from tests.world import World, units_of

__all__ = ["rates"]


def run(number: int, busy: int | None, asked: int = 8, hours: float = 10, name: str = "") -> ReportedRun:
    advice = {} if busy is None else {"fewer_gpus": {"asked": asked, "busy": busy}}
    return ReportedRun(number, 1, 1, name or f"train-{number}", hours, advice)


@pytest.mark.parametrize(
    ("name", "work"),
    [("train-12", "train"), ("train", "train"), ("a 1.5", "a 1"), ("42", "42"), ("x_007", "x")],
)
def test_the_number_at_the_end_of_a_name_does_not_separate_work(name: str, work: str) -> None:
    assert work_name(name) == work


def test_the_suggestion_fits_the_run_that_needed_most() -> None:
    [found] = right_sizings([run(1, 2), run(2, 4), run(3, 1)])
    assert (found.name, found.numbers["busy"], found.runs, found.advised_runs) == ("train", 4, 3, 3)
    assert found.saved_hours == pytest.approx(30 * 0.5)


def test_work_that_mostly_uses_its_gpus_gets_no_advice() -> None:
    assert right_sizings([run(1, 2), run(2, None)]) == []
    [found] = right_sizings([run(1, 2), run(2, 2), run(3, None)])
    assert (found.runs, found.advised_runs, found.held_hours) == (3, 2, 20)


def test_other_projects_people_and_names_are_other_work() -> None:
    assert [each.name for each in right_sizings([run(1, 2, name="a"), run(2, 2, name="b", hours=20)])] == [
        "b",
        "a",
    ]


def test_idle_runs_and_slices_save_their_part() -> None:
    none = {"no_gpu": {"asked": 2, "busy": 0, "held_hours": 5.0}}
    part = {"smaller_slice": {"profile": "1g.10gb", "slice_compute": 0.25, "slice_mib": 9_000}}
    idle, sliced = (
        ReportedRun(number, number, 1, "x", 8.0, advice) for number, advice in enumerate((none, part))
    )
    assert [each.saved_hours for each in right_sizings([idle, sliced])] == [8.0, 6.0]


@pytest.fixture
def reported(rates: World) -> World:
    """Return a world in which vision ran two jobs on four GPUs, of which one had work."""
    units = units_of(rates.hosts["alpha"])[:4]
    for number, day in enumerate((3, 4)):
        work = workload(
            rates, rates.vision, name=f"fit-{number}", units=4, state="ended", ended_at=at(11, day=day)
        )
        for unit in units:
            hold(work, unit, at(9, day=day), at(11, day=day), end_code="finished")
        advice: list[dict[str, Any]] = [
            {"code": "fewer_gpus", "numbers": {"asked": 4, "busy": 1, "unused_gpus": 3}}
        ]
        report = RunReport.objects.create(
            workload=work,
            start=at(9, day=day),
            end=at(11, day=day),
            point_seconds=60,
            advice=advice,
            made_at=at(12, day=day),
            frozen_at=at(12, day=day),
        )
        RunReportUnit.objects.bulk_create(
            RunReportUnit(report=report, unit=unit, held_seconds=7_200, covered_seconds=7_200, samples=720)
            for unit in units
        )
    charge_all_gpus(at(0, day=5))
    return rates


def saving_of(report: RunReportDetails) -> Decimal:
    """Return the money that a run would have saved, from the two amounts that its own report shows."""
    [advice] = report.report.advice
    less = report.cost_with(advice)
    assert report.cost is not None and less is not None
    return report.cost["EUR"] - less["EUR"]


@pytest.mark.django_db
def test_the_advice_has_the_hours_and_the_cost_of_the_runs_that_it_advises(reported: World) -> None:
    filters = UsageFilters(start=at(0, day=1), end=at(0, day=5))
    [advice] = sizing_advice(reported.finance, filters, at(0, day=5))
    assert advice.sizing.saved_hours == pytest.approx(12.0)
    assert advice.headline == "Ask for 1 GPU instead of 4"
    assert (
        advice.evidence.startswith("2 runs of fit in ") and "asked for 4 GPUs and used 1" in advice.evidence
    )
    assert advice.saved is not None and advice.saved > 0
    reports = [run_report(row.workload, row.workload.owner, at(0, day=5)) for row in RunReport.objects.all()]
    assert advice.saved == sum(saving_of(report) for report in reports if report is not None)
    assert advice.saved_per_month == pytest.approx(advice.saved * 730 / 96, abs=Decimal("0.01"))


@pytest.mark.django_db
def test_people_see_the_advice_for_their_own_work_and_leads_that_of_their_teams(reported: World) -> None:
    filters = UsageFilters(start=at(0, day=1), end=at(0, day=5))
    seen = {role: len(sizing_advice(who, filters, at(0, day=5))) for role, who in reported.people.items()}
    assert seen == {
        "member": 1,
        "lead": 1,
        "operator": 1,
        "finance": 1,
        "auditor": 1,
        "team mate": 0,
        "other team": 0,
        "stranger": 0,
    }


@pytest.mark.django_db
def test_saved_money_is_shown_only_to_people_who_see_the_charges_of_the_work(reported: World) -> None:
    filters, now = UsageFilters(start=at(0, day=1), end=at(0, day=5)), at(0, day=5)
    shown = {
        role: [each.saved is not None and each.saved_per_month is not None for each in advice]
        for role, who in reported.people.items()
        if (advice := sizing_advice(who, filters, now))
    }
    assert shown == {
        "member": [True],
        "lead": [True],
        "operator": [False],
        "finance": [True],
        "auditor": [True],
    }
    Membership.objects.create(
        user=reported.operator, team=reported.vision.team, role=Membership.Role.LEAD, created_at=reported.now
    )
    [advice] = sizing_advice(reported.operator, filters, now)
    assert advice.saved is not None


@pytest.mark.django_db
def test_the_utilisation_page_shows_the_advice_and_the_forecast(reported: World) -> None:
    client, period = signed_in(reported.operator), {"start": "2026-03-01", "end": "2026-03-05"}
    page = client.get(reverse("utilisation"), period)
    charts = {entry["name"]: entry["chart"] for entry in page.context["charts"]}
    assert "1 piece of advice saves 12 GPU-hours" in charts["right-sizing"].finding.main
    answer = client.get(reverse("utilisation-csv", args=["right-sizing"]), period)
    assert b"".join(answer).decode().splitlines()[1].startswith("fit,")
    assert charts["right-sizing"].rows[0][0]["text"].startswith("Ask for")
    assert "Too few days" in charts["demand-forecast"].finding.main
