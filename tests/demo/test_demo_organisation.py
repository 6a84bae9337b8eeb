"""Test the demo organisation: it is created once and includes this machine's real GPUs, if any."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.test import Client
from django.urls import reverse

from demo import organisation
from portal.models import Organisation, User
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import Priority
from scheduler.models import Host, Quota
from telemetry.models import CostCentreShare, Price, PriceFactor

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)


def guarantees(model: str) -> list[float]:
    rows = Quota.objects.filter(model=model).order_by("team_id").values_list("guaranteed_slots", flat=True)
    return [slots / SLOTS_PER_GPU for slots in rows]


def test_without_real_gpus_every_demo_host_is_simulated() -> None:
    created = organisation.create_organisation(NOW)
    assert [agent["name"] for agent in created["agents"]] == ["h1", "h2", "h3", "h4"]
    assert all(agent["simulate"] for agent in created["agents"])
    assert not Host.objects.filter(simulated=False).exists()


def test_a_machine_with_gpus_is_the_first_host_and_every_team_has_a_guarantee_on_it() -> None:
    created = organisation.create_organisation(NOW, ["H200-141GB"] * 4)
    assert [agent["name"] for agent in created["agents"]] == ["this-machine", "h1", "h2", "h3", "h4"]
    assert created["agents"][0]["simulate"] == "" and created["agents"][0]["join_token"]
    assert not Host.objects.get(name="this-machine").simulated
    assert guarantees("H200-141GB") == [2, 1, 1]
    assert Price.objects.filter(model="H200-141GB").count() == 1


def test_real_gpus_of_a_simulated_model_do_not_change_the_guarantees() -> None:
    organisation.create_organisation(NOW, ["H100-80GB"])
    assert guarantees("H100-80GB") == [8, 6, 2]
    assert Price.objects.filter(model="H100-80GB").count() == 1


def test_creating_the_organisation_again_only_issues_new_join_tokens() -> None:
    first, second = (
        organisation.create_organisation(NOW, ["H200-141GB"]),
        organisation.create_organisation(NOW),
    )
    assert len(second["sign_ins"]) == 0
    assert [agent["name"] for agent in first["agents"]] == [agent["name"] for agent in second["agents"]]
    assert first["agents"][0]["join_token"] != second["agents"][0]["join_token"]


def test_two_people_close_a_month_of_the_demo() -> None:
    organisation.create_organisation(NOW)
    assert Organisation.objects.get().two_step_close


@pytest.mark.parametrize("with_history", [True, False])
def test_pages_mention_simulated_history_only_if_it_exists(with_history: bool) -> None:
    organisation.create_organisation(NOW, with_history=with_history)
    client = Client()
    client.force_login(User.objects.get(username="operator"))
    assert ("is simulated history" in client.get(reverse("fleet")).content.decode()) == with_history


def test_the_present_month_has_a_price_factor_and_a_split_project() -> None:
    organisation.create_organisation(NOW)
    first = datetime(2026, 11, 1, tzinfo=UTC)
    factor = PriceFactor.objects.get()
    assert (factor.priority, factor.factor, factor.valid_from) == (Priority.LOW, Decimal("0.8"), first)
    entries: dict[tuple[str, datetime], Decimal] = defaultdict(Decimal)
    for share in CostCentreShare.objects.exclude(project=None):
        entries[share.project.slug, share.valid_from] += share.percent
    assert set(entries.values()) == {100} and entries["mri-foundation", first]
    codes = CostCentreShare.objects.filter(valid_from=first).values_list("code", flat=True)
    assert len(codes) == 2 and set(codes) <= {code for code, *_ in organisation.COST_CENTRES}
