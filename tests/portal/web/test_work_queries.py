"""Test that each page makes a fixed number of queries, whatever number of objects it shows.

``query_counts.json`` records the number for each page. Any difference fails the test.
To write new numbers for review, set `RECORD_QUERY_COUNTS=1`.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal.models import Membership
from portal.reads.work import wait_explanation
from scheduler.models import Host, Storage, Volume, Workload
from tests.portal.web.work_samples import make_waiting, queue_job, reserve, run_job, signed_in
from tests.telemetry.rows import at, rates
from tests.telemetry.test_long_periods import used
from tests.world import World, world_fixture

__all__ = ["rates", "used"]
pytestmark = pytest.mark.django_db

RECORDED = Path(__file__).with_name("query_counts.json")
PAGES: dict[str, dict[str, str]] = {
    "home": {},
    "notebooks": {},
    "notebook-launch": {},
    "jobs": {},
    "queue": {},
    "calendar": {},
    "ask": {"kind": "reservation"},
    "job-submit": {},
    "search": {"q": "work"},
    "volumes": {},
    "cost-centres": {},
}
SHORT_PART = ("home", "queue")
PAGES_OF_ONE: dict[str, dict[str, str]] = {"job": {"tab": "log"}, "why": {}, "workload-report": {}}


@pytest.fixture(autouse=True)
def no_answer_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute every answer anew: cached answers would make the counts depend on the time."""
    monkeypatch.setattr(wait_explanation, "cached_answer", lambda question, now, answer: answer())


def write_some_work(world: World) -> Workload:
    """Create one object of each kind."""
    storage = Storage.objects.create(key="store1", listed_at=world.now)
    Volume.objects.create(storage=storage, name=world.vision.member.username)
    Host.objects.filter(name="alpha").update(storage=storage)
    run_job(world, world.vision, "work-lab", kind="notebook", host="alpha", gpus=[0])
    reserve(world, world.vision, "work-review", hours=24, length=2)
    queue_job(world, world.vision, "work-ended", state="ended", outcome="finished")
    make_waiting(world, world.vision, "work-waits")
    return run_job(world, world.vision, "work-runs", host="alpha", gpus=[1, 2])


some_work = world_fixture(write_some_work)


def much_more(world: World) -> None:
    """Create several times the objects of ``some_work``."""
    for host in Host.objects.exclude(name="alpha"):
        host.storage = Storage.objects.create(key=host.name, listed_at=world.now)
        host.save()
        Volume.objects.create(storage=host.storage, name=world.vision.member.username)
    for number in range(4):
        run_job(world, world.vision, f"work-lab-{number}", kind="notebook", host="beta", gpus=[number])
        run_job(world, world.vision, f"work-runs-{number}", host="beta", gpus=[number + 4])
        make_waiting(world, world.vision, f"work-waits-{number}")
        queue_job(world, world.vision, f"work-ended-{number}", state="ended", outcome="failed")
        reserve(world, world.vision, f"work-review-{number}", hours=24 + number, length=2)


def queries_of(world: World, url: str, parameters: dict[str, str]) -> int:
    """Return the number of queries of the second visit. The first visit fills the caches."""
    client = signed_in(world.vision.member)
    client.get(url, parameters)
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert client.get(url, parameters).status_code == 200
    return len(asked)


def check(name: str, count: int) -> None:
    known: dict[str, Any] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("RECORD_QUERY_COUNTS"):
        known[name] = count
        RECORDED.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    assert known.get(name) == count, f"{name} makes {count} queries; {known.get(name)} are recorded"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page in SHORT_PART else pytest.mark.long) for page in PAGES],
)
def test_a_page_makes_the_recorded_number_of_queries_however_much_it_shows(
    world: World, some_work: Workload, page: str
) -> None:
    before = queries_of(world, reverse(page), PAGES[page])
    much_more(world)
    after = queries_of(world, reverse(page), PAGES[page])
    assert after <= before, f"{page} makes {after - before} more queries if it shows more"
    check(page, before)


@pytest.mark.parametrize("days", [7, *(pytest.param(days, marks=pytest.mark.long) for days in (30, 365))])
def test_the_utilisation_page_makes_at_most_30_queries(used: World, days: int) -> None:
    end = at(0, day=3)
    period = {"start": f"{end - timedelta(days=days):%Y-%m-%d}", "end": f"{end:%Y-%m-%d}"}
    client = signed_in(used.operator)
    cache.clear()
    for visit in ("first visit", ""):
        with CaptureQueriesContext(connection) as asked:
            page = client.get(reverse("utilisation"), period)
        assert page.context["waterfall"]["rows"] and page.context["league"]["rows"]
        assert len(asked) <= 30
        check(f"utilisation {days}d {visit}".strip(), len(asked))


@pytest.mark.parametrize("by", ["team", "project"])
def test_an_operator_who_leads_a_team_sees_its_charges_in_use_by(used: World, by: str) -> None:
    Membership.objects.create(
        user=used.operator, team=used.vision.team, role=Membership.Role.LEAD, created_at=used.now
    )
    client, end = signed_in(used.operator), at(0, day=3)
    period = {"start": f"{end - timedelta(days=7):%Y-%m-%d}", "end": f"{end:%Y-%m-%d}", "by": by}
    cache.clear()
    with CaptureQueriesContext(connection) as asked:
        page = client.get(reverse("utilisation"), period)
    if by == "team":  # other groups need queries of their own
        assert len(asked) <= 30
    [chart] = [each["chart"] for each in page.context["charts"] if each["name"] == "use-by"]
    name = used.vision.team.name if by == "team" else used.vision.project.name
    charged = {text_of(row[0]): row[-1] for row in chart.rows}
    assert charged[name] not in ("–", "")
    assert {text for key, text in charged.items() if key != name} == {"–"}


def text_of(cell: Any) -> str:
    """Return the text of a cell of a table."""
    return cell["text"] if isinstance(cell, dict) else str(cell)


@pytest.mark.parametrize("page", PAGES_OF_ONE)
def test_the_page_of_one_workload_makes_the_recorded_number_of_queries(
    world: World, some_work: Workload, page: str
) -> None:
    before = queries_of(world, reverse(page, args=[some_work.public_id]), PAGES_OF_ONE[page])
    much_more(world)
    assert queries_of(world, reverse(page, args=[some_work.public_id]), PAGES_OF_ONE[page]) <= before
    check(page, before)
