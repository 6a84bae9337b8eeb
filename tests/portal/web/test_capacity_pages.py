"""Test the pages and the endpoints of the studies of the number of GPUs."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.core.cache import cache
from django.urls import reverse
from rest_framework.test import APIClient

from portal.models import AuditEvent
from portal.reads.fleet.demand_forecast import past_demand, warm_demand
from telemetry.capacity import studies
from telemetry.core.capacity.demand_forecast import forecast_demand
from telemetry.models import CapacityStudy
from tests.portal.web.test_manage_money_pages import signed_in
from tests.telemetry.rows import at, hold, rates, workload
from tests.world import A100, H100, World, units_of

__all__ = ["rates"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def studied(rates: World, monkeypatch: pytest.MonkeyPatch) -> CapacityStudy:
    """Return a finished study of the H100s, of which four were held for an hour after an hour of waiting."""
    for unit in units_of(rates.hosts["alpha"])[:4]:
        work = workload(rates, rates.vision, submitted_at=at(9, day=3), state="ended", ended_at=at(11, day=3))
        hold(work, unit, at(10, day=3), at(11, day=3), end_code="finished")
    studies.create_study(rates.shared, H100, 600, rates.operator, at(0, day=6))
    monkeypatch.setattr(studies, "MAX_BISECTIONS", 0)
    done = studies.run_next_study(lambda: at(1, day=6))
    assert done is not None
    return done


def test_an_operator_requests_a_study_and_finds_it_again(world: World) -> None:
    client = signed_in(world.operator)
    wish = {"pool": world.shared.pk, "model": H100, "wait_limit_seconds": "2 h"}
    answer = client.post(reverse("capacity"), wish)
    study = CapacityStudy.objects.get()
    assert answer.status_code == 302 and answer.url == reverse("capacity-study", args=[study.public_id])
    assert (study.model, study.wait_limit_seconds, study.state) == (H100, 7_200, "waiting")
    assert study.end - study.start == dt.timedelta(weeks=13)
    assert AuditEvent.objects.filter(verb="request_capacity_study").count() == 1
    page = client.get(answer.url).content.decode()
    assert "waits for its turn" in page and "No number of GPUs is replayed yet." in page
    assert "waits for its turn" in client.get(reverse("capacity")).content.decode()
    again = client.post(reverse("capacity"), wish)
    assert again.status_code == 400 and "has not ended yet" in again.content.decode()


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"model": "GTX", "wait_limit_seconds": 600}, "model is 'GTX'; allowed: empty for each model, or"),
        (
            {"wait_limit_seconds": 10},
            "wait_limit_seconds is 10; allowed: a whole number from 60 to 2,592,000",
        ),
        ({"wait_limit_seconds": 600, "pool": "nowhere"}, "pool is"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused(world: World, wish: dict[str, object], says: str) -> None:
    client = APIClient()
    client.force_authenticate(world.operator)
    answer = client.post("/api/v1/capacity-studies/", {"pool": "shared", **wish}, format="json")
    assert answer.status_code == 400 and says in json.dumps(answer.json())
    assert not CapacityStudy.objects.exists()


def test_page_file_and_endpoint_show_the_same_sizes(studied: CapacityStudy, rates: World) -> None:
    client = signed_in(rates.operator)
    page = client.get(reverse("capacity-study", args=[studied.public_id]))
    text = page.content.decode()
    assert "are the fewest that keep the wait: 19 of 20 requests start within 10 min" in text
    assert "the figures are only a rough estimate" in text  # the recorded waits had another cause
    api = APIClient()
    api.force_authenticate(rates.operator)
    [model] = api.get(f"/api/v1/capacity-studies/{studied.public_id}/").json()["models"]
    assert [size["gpus"] for size in model["sizes"]] == [13, 14, 16, 18, 19, 21, 22]
    assert model["recommended"]["gpus"] == 13 and model["recorded_p95_seconds"] == 3_600
    assert model["wait_error"] == 1.0
    assert float(model["sizes"][0]["extra_cost_per_month"]) < 0 < float(model["sizes"][-1]["cost_per_month"])
    lines = b"".join(client.get(reverse("capacity-study-csv", args=[studied.public_id])))
    assert [line.split(",")[2] for line in lines.decode().splitlines()[1:]] == [
        str(size["gpus"]) for size in model["sizes"]
    ]


def test_the_demand_of_past_days_is_read_once_a_day_and_before_a_request_needs_it(
    rates: World, django_assert_num_queries: Any
) -> None:
    cache.clear()
    unit = units_of(rates.hosts["gamma"])[0]
    hold(workload(rates, rates.vision, submitted_at=at(9, day=3)), unit, at(9, day=3), at(11, day=3))
    warm_demand(at(12, day=6), dt.UTC)
    with django_assert_num_queries(0):
        past = past_demand(dt.date(2026, 3, 6), dt.UTC)
        warm_demand(at(13, day=6), dt.UTC)
    key = rates.shared.pk, A100
    assert past.known[key][dt.date(2026, 3, 3)] == pytest.approx(2.0)
    assert past.forecasts[key] == forecast_demand(past.known[key], dt.date(2026, 3, 6))


def test_a_forecast_of_an_unknown_model_is_refused_with_the_models(world: World) -> None:
    client = APIClient()
    client.force_authenticate(world.vision.member)
    refused = client.get("/api/v1/demand-forecast/", {"model": "nowhere"})
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["message"] == f"model is 'nowhere'; allowed: {A100}, {H100}."
    parts = client.get("/api/v1/demand-forecast/", {"model": H100}).json()["parts"]
    assert {part["model"] for part in parts} == {H100}


def test_people_see_the_forecast_of_the_pools_that_they_may_use(world: World) -> None:
    seen = {}
    for who in (world.vision.member, world.language.member):
        client = APIClient()
        client.force_authenticate(who)
        parts = client.get("/api/v1/demand-forecast/").json()["parts"]
        seen[who] = {(part["pool"], part["model"]) for part in parts}
    assert ("vision-only", A100) in seen[world.vision.member]
    assert seen[world.language.member] == {("shared", A100), ("shared", H100)}
