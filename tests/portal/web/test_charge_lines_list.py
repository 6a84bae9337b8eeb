"""Test the list of charge lines: its filters, its sums, its size and the rows that it links."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal.models import User
from portal.reads.money import charge_line_list
from scheduler.models import Pool, Workload
from telemetry.models import Charge
from tests.portal.charged_january import HELD, MONTH, charged
from tests.world import World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db
DAY = f"{HELD[0]:%Y-%m-%d}"


def listed(user: User, **filters: Any) -> Any:
    client = Client()
    client.force_login(user)
    return client.get(reverse("charge-lines"), {"month": MONTH, **filters})


def lines_of(answer: Any) -> set[int]:
    assert answer.status_code == 200
    return {entry["line"].pk for entry in answer.context["rows"]}


def test_a_day_and_a_bucket_select_their_lines(world: World, charged: Workload) -> None:
    held = set(Charge.objects.filter(workload=charged).values_list("pk", flat=True))
    answer = listed(world.finance, day=DAY, bucket="used")
    assert lines_of(answer) == held
    assert "EUR 100.00" in answer.content.decode() or "€100.00" in answer.content.decode()
    assert lines_of(listed(world.finance, day="2026-01-05", bucket="used")) == set()


def test_the_lines_of_a_workload_are_counted_once_and_without_sorting_them(
    world: World, charged: Workload
) -> None:
    with CaptureQueriesContext(connection) as queries:
        answer = listed(world.finance, workload=charged.pk)
    assert "4 rows" in answer.content.decode() and answer.context["page"].paginator.count == 4
    counts = [
        sql
        for sql in (each["sql"] for each in queries)
        if sql.startswith("SELECT COUNT(*)") and '"telemetry_charge"' in sql
    ]
    assert len(counts) == 1 and "ORDER BY" not in counts[0]


def test_one_filter_selects_several_buckets_and_only_finance_sees_the_owners_cost(
    world: World, charged: Workload
) -> None:
    answer = listed(world.finance, bucket="unallocated,maintenance", day=DAY)
    buckets = {entry["line"].bucket for entry in answer.context["rows"]}
    assert buckets == {"unallocated"} and answer.context["total"].cost > 0
    assert "Owner" in answer.content.decode()
    assert "Owner" not in listed(world.vision.lead, bucket="unallocated").content.decode()


def test_a_filter_separates_the_use_of_the_month_from_its_corrections(
    world: World, charged: Workload
) -> None:
    line = Charge.objects.filter(workload=charged).earliest("pk")
    copied = {
        field.attname: getattr(line, field.attname)
        for field in Charge._meta.concrete_fields
        if field.attname not in ("id", "month")
    }
    february_first = HELD[0].date().replace(month=2, day=1)
    late = Charge.objects.create(**copied | {"month": february_first, "corrects_id": line.pk})
    february = {"month": "2026-02", "workload": charged.pk}
    for value, found in (("2026-01", {late.pk}), ("any", {late.pk}), ("none", set())):
        assert lines_of(listed(world.finance, **february, corrected_month=value)) == found
    assert lines_of(listed(world.finance, month="2026-02", day=DAY)) == {late.pk}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("day", "2026-02-01"),
        ("day", "2026-W01-1"),
        ("day", "today"),
        ("bucket", "used,lost"),
        ("bucket", ""),
        ("corrected_month", "2025-12"),
        ("corrected_month", "all"),
    ],
)
def test_an_unknown_value_is_refused_with_field_value_and_what_is_allowed(
    world: World, charged: Workload, name: str, value: str
) -> None:
    answer = listed(world.finance, **{name: value})
    assert answer.status_code == 404
    assert f"{name} is '{value}'; allowed: " in str(answer.context["message"])


def test_the_list_ends_at_its_bound_and_says_so(
    world: World, charged: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charge_line_list, "MAX_LISTED_LINES", 3)
    answer = listed(world.finance, workload=charged.pk)
    assert len(lines_of(answer)) == 3
    assert "Only the first" in answer.content.decode()
    monkeypatch.setattr(charge_line_list, "MAX_LISTED_LINES", 4)
    assert "Only the first" not in listed(world.finance, workload=charged.pk).content.decode()


def test_pages_that_the_viewer_may_not_open_are_not_linked(world: World, charged: Workload) -> None:
    job, host = reverse("job", args=[charged.public_id]), reverse("host", args=["alpha"])
    shown = listed(world.vision.member, workload=charged.pk).content.decode()
    assert job in shown and host in shown
    assert job not in listed(world.finance, workload=charged.pk).content.decode()
    Pool.objects.filter(pk=world.shared.pk).update(kind="static", team=world.language.team)
    assert "alpha" not in listed(world.vision.member, workload=charged.pk).content.decode()


@pytest.mark.parametrize("role", ["team mate", "other team"])
def test_others_see_no_line(world: World, charged: Workload, role: str) -> None:
    assert lines_of(listed(world.people[role], day=DAY)) == set()


def test_the_number_of_queries_does_not_grow_with_the_lines(world: World, charged: Workload) -> None:
    client = Client()
    client.force_login(world.finance)
    with CaptureQueriesContext(connection) as few:
        client.get(reverse("charge-lines"), {"month": MONTH, "workload": charged.pk})
    with CaptureQueriesContext(connection) as many:
        answer = client.get(reverse("charge-lines"), {"month": MONTH})
    assert answer.context["page"].paginator.count > 40
    assert len(many) <= len(few) <= 30
