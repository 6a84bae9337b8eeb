"""The demo organisation: made once, and this machine's real GPUs are part of it where there are any."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.test import Client
from django.urls import reverse

from demo import organisation
from portal.models import User
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Host, Quota
from telemetry.models import Price

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)


def guarantees(model: str) -> list[float]:
    rows = Quota.objects.filter(model=model).order_by("team_id").values_list("guaranteed_slots", flat=True)
    return [slots / SLOTS_PER_GPU for slots in rows]


def test_without_gpus_every_host_of_the_demo_is_simulated() -> None:
    made = organisation.create_organisation(NOW)
    assert [agent["name"] for agent in made["agents"]] == ["h1", "h2", "h3", "h4"]
    assert all(agent["simulate"] for agent in made["agents"])
    assert not Host.objects.filter(simulated=False).exists()


def test_the_first_host_is_this_machine_where_it_has_gpus_and_every_team_may_use_them() -> None:
    made = organisation.create_organisation(NOW, ["H200-141GB"] * 4)
    assert [agent["name"] for agent in made["agents"]] == ["this-machine", "h1", "h2", "h3", "h4"]
    assert made["agents"][0]["simulate"] == "" and made["agents"][0]["join_token"]
    assert not Host.objects.get(name="this-machine").simulated
    assert guarantees("H200-141GB") == [2, 1, 1]
    assert Price.objects.filter(model="H200-141GB").count() == 1


def test_gpus_like_the_simulated_ones_leave_the_guarantees_as_they_are() -> None:
    organisation.create_organisation(NOW, ["H100-80GB"])
    assert guarantees("H100-80GB") == [8, 6, 2]
    assert Price.objects.filter(model="H100-80GB").count() == 1


def test_made_again_it_only_gives_new_join_tokens() -> None:
    first, second = (
        organisation.create_organisation(NOW, ["H200-141GB"]),
        organisation.create_organisation(NOW),
    )
    assert len(second["sign_ins"]) == 0
    assert [agent["name"] for agent in first["agents"]] == [agent["name"] for agent in second["agents"]]
    assert first["agents"][0]["join_token"] != second["agents"][0]["join_token"]


@pytest.mark.parametrize("with_history", [True, False])
def test_pages_speak_of_a_simulated_past_only_where_there_is_one(with_history: bool) -> None:
    organisation.create_organisation(NOW, with_history=with_history)
    client = Client()
    client.force_login(User.objects.get(username="operator"))
    assert ("is simulated history" in client.get(reverse("fleet")).content.decode()) == with_history
