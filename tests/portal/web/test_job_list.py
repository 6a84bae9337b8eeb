"""Test the list of jobs: its order, its dates, the use of ended jobs; and the log of a run without output."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.urls import reverse
from django.utils import timezone

from portal.wording.pages import workload_pages
from scheduler.models import Run, Workload
from scheduler.runs import logs
from telemetry.models import RunReport, RunReportUnit
from tests.portal.web.work_samples import queue_job, run_job, signed_in
from tests.world import World

pytestmark = pytest.mark.django_db


def end(job: Workload, *, hours_ago: float = 1) -> Workload:
    """End a workload and its run."""
    job.state, job.outcome = "ended", "finished"
    job.ended_at = timezone.now() - timedelta(hours=hours_ago)
    job.submitted_at = job.ended_at - timedelta(minutes=30)
    job.save()
    job.runs.update(state="ended", ended_at=job.ended_at)
    for allocation in job.allocations.all():
        allocation.period = DateTimeTZRange(allocation.period.lower, timezone.now())
        allocation.save()
    return job


def names(world: World, **query: str) -> list[str]:
    page = signed_in(world.vision.member).get(reverse("jobs"), query)
    return [row["workload"].name for row in page.context["rows"]]


def test_jobs_that_have_not_ended_come_before_ended_ones(world: World) -> None:
    now = timezone.now()
    run_job(world, world.vision, "runs", host="alpha", gpus=[0], submitted_at=now - timedelta(days=3))
    end(queue_job(world, world.vision, "ended-first"), hours_ago=2)
    end(queue_job(world, world.vision, "ended-last"), hours_ago=1)
    queue_job(world, world.vision, "waits", submitted_at=now - timedelta(days=1))
    assert names(world) == ["runs", "waits", "ended-last", "ended-first"]
    assert names(world, sort="name") == ["ended-first", "ended-last", "runs", "waits"]


def test_each_row_has_the_date_of_submission_and_of_the_end(world: World) -> None:
    job = end(queue_job(world, world.vision, "ended"), hours_ago=50)
    waiting = queue_job(world, world.vision, "waits")
    page = signed_in(world.vision.member).get(reverse("jobs"))
    rows = {row["workload"].name: (row["submitted"], row["ended"]) for row in page.context["rows"]}
    assert rows == {"ended": (job.submitted_at, job.ended_at), "waits": (waiting.submitted_at, None)}
    assert page.content.decode().count("ended <time") == 1


def add_report(job: Workload, used: float | None, unknown: float) -> None:
    """Write the report of a workload that held one unit and was measured for 100 seconds."""
    now = timezone.now()
    report = RunReport.objects.create(
        workload=job, start=now, end=now, point_seconds=60, made_at=now, frozen_at=now
    )
    RunReportUnit.objects.create(
        report=report,
        unit=job.allocations.get().unit,
        held_seconds=200,
        covered_seconds=100,
        samples=10,
        utilisation_seconds=used,
        utilisation_unknown_seconds=unknown,
    )


def test_an_ended_job_shows_its_mean_use_and_no_number_if_it_was_not_measured(world: World) -> None:
    for number, (name, used) in enumerate({"busy": 4000.0, "unmeasured": None}.items()):
        job = end(run_job(world, world.vision, name, host="alpha", gpus=[number]))
        add_report(job, used, unknown=50)
    end(run_job(world, world.vision, "no-report", host="alpha", gpus=[2]))
    end(queue_job(world, world.vision, "never-ran"))
    page = signed_in(world.vision.member).get(reverse("jobs"))
    use = {row["workload"].name: row["use_text"] for row in page.context["rows"]}
    assert use == {"busy": "mean 80 %", "unmeasured": "unknown", "no-report": "unknown", "never-ran": ""}


def log_page(world: World, job: Workload) -> str:
    return signed_in(world.vision.member).get(reverse("job", args=[job.public_id])).content.decode()


def test_the_log_of_an_ended_run_without_output_says_why_it_is_empty(world: World, settings: Any) -> None:
    job = end(run_job(world, world.vision, "silent", host="alpha", gpus=[0]))
    assert workload_pages.NO_OUTPUT in log_page(world, job) and 'id="log"' not in log_page(world, job)
    Run.objects.update(ended_at=timezone.now() - timedelta(days=settings.GPUPOOL_LOG_DAYS + 1))
    deleted = workload_pages.OUTPUT_DELETED.format(days=settings.GPUPOOL_LOG_DAYS)
    assert deleted in log_page(world, job)
    Workload.objects.update(simulated=True)
    assert workload_pages.NO_OUTPUT_SIMULATED in log_page(world, job)
    logs.append_log(job.runs.get().public_id, 0, "hello\n")
    assert "hello" in log_page(world, job) and "No output" not in log_page(world, job)
