"""Test the page and the API answer of one charge line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from portal.models import User
from portal.reads.money.charge_line import charge_line
from portal.wording.chargeback.charge_line_texts import UNCHARGED_BUCKETS
from scheduler.models import Pool, Workload
from telemetry.core.charge_model import CHARGED_BUCKETS, ChargeBucket
from telemetry.models import Charge
from tests.architecture.sources import ROOT
from tests.portal.charged_january import HELD, charged
from tests.portal.web.work_samples import reserve
from tests.telemetry.rows import change_in_place, store_rollup
from tests.world import World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def line(charged: Workload) -> Charge:
    """Return one of the four lines of the job: a whole GPU for ten hours at 2.50."""
    return Charge.objects.filter(workload=charged).earliest("pk")


def page(user: User, line: Charge) -> Any:
    client = Client()
    client.force_login(user)
    return client.get(reverse("charge-line", args=[line.pk]))


def answer(user: User, line: Charge) -> Any:
    client = APIClient()
    client.force_authenticate(user)
    return client.get(f"/api/v1/charges/{line.pk}/")


def test_the_pages_the_api_and_the_files_of_charges_show_the_cost_to_the_same_people(
    world: World, line: Charge
) -> None:
    """An operator who leads the team sees its charges, but not their cost."""
    world.vision.lead.operator = True
    world.vision.lead.save()
    for role in ("finance", "lead"):
        user, client = world.people[role], Client()
        client.force_login(user)
        month = {"month": f"{line.month:%Y-%m}"}
        files = [
            client.get(reverse("chargeback"), {**month, "format": "csv"}),
            client.get(reverse("charge-lines"), {**month, "format": "csv"}),
            client.get(reverse("export", args=[month["month"]]), {"kind": "statement"}),
        ]
        heads = [file.getvalue().decode().splitlines()[0].split(",") for file in files]
        shown = {
            "20.301000" in page(user, line).content.decode(),
            answer(user, line).json()["cost"] is not None,
            *("cost" in head for head in heads),
        }
        assert shown == {role == "finance"}


def write_rollup(line: Charge, resolution: int, start: datetime, utilisation: float | None) -> None:
    """Write a rollup whose unit is held for the whole time. Samples cover half of the time."""
    assert line.allocation is not None
    store_rollup(
        resolution,
        start,
        line.allocation.unit,
        line.allocation,
        covered_seconds=resolution / 2,
        samples=3,
        utilisation_seconds=None if utilisation is None else utilisation * resolution / 2,
        utilisation_max=None if utilisation is None else 100 * utilisation,
    )


def test_the_page_writes_out_how_the_amount_is_computed(world: World, line: Charge) -> None:
    text = page(world.finance, line).content.decode()
    assert "840/840 × 36,000 s / 3,600 × 2.500000 = 25.000000" in text
    assert "36,000" in text and "25.000000" in text and "amounts in EUR" in text


def test_the_page_links_the_workload_the_price_and_the_gpu(
    world: World, line: Charge, charged: Workload
) -> None:
    text = page(world.vision.lead, line).content.decode()
    assert reverse("job", args=[charged.public_id]) in text
    assert reverse("rate-card") in text
    assert reverse("host", args=["alpha"]) in text and "alpha GPU 0" in text
    assert "attempt 1" in text and "CC-vision" in text
    assert "As lead you see all charges of Vision" in text


def test_the_page_links_the_allocation_and_the_reservation(
    world: World, line: Charge, charged: Workload
) -> None:
    booked = reserve(world, world.vision, "sprint", hours=1, length=2)
    change_in_place(line, reservation_id=booked.pk)
    text = page(world.vision.lead, line).content.decode()
    attempt = f"{reverse('job', args=[charged.public_id])}?tab=attempts#attempt-{charged.attempt}"
    assert f'<a href="{attempt}">{line.allocation_id}</a>' in text
    assert f'<a href="{reverse("reservation", args=[booked.public_id])}">sprint</a>' in text


def test_finance_sees_the_name_of_a_workload_whose_page_it_may_not_open(
    world: World, line: Charge, charged: Workload
) -> None:
    text = page(world.finance, line).content.decode()
    assert "fit, attempt 1" in text and str(charged.public_id) not in text


def test_the_host_of_a_pool_that_the_viewer_may_not_see_is_not_named(
    world: World, line: Charge, charged: Workload
) -> None:
    Pool.objects.filter(pk=world.shared.pk).update(kind="static", team=world.language.team)
    text = page(world.vision.member, line).content.decode()
    assert "alpha" not in text and "H100 80GB" in text
    body = answer(world.vision.member, line).json()
    assert (body["host"], body["gpu"]) == (None, None)


@pytest.mark.parametrize(
    ("role", "sees_line", "sees_cost"),
    [
        ("finance", True, True),
        ("auditor", True, True),
        ("lead", True, False),
        ("member", True, False),
        ("team mate", False, False),
        ("other team", False, False),
        ("operator", False, False),
        ("stranger", False, False),
    ],
)
def test_the_line_is_shown_to_those_who_see_it_in_the_list(
    world: World, line: Charge, role: str, sees_line: bool, sees_cost: bool
) -> None:
    shown, body = page(world.people[role], line), answer(world.people[role], line)
    assert (shown.status_code, body.status_code) == ((200, 200) if sees_line else (404, 404))
    if sees_line:
        assert ("20.301000" in shown.content.decode()) is sees_cost
        assert body.json()["cost"] == ("20.301000" if sees_cost else None)


def test_a_line_that_does_not_exist_answers_like_one_that_the_viewer_may_not_see(
    world: World, line: Charge
) -> None:
    missing = Charge(pk=10**15)
    hidden, absent = (
        re.sub(r'nonce="[^"]*"', "", page(world.stranger, each).content.decode()) for each in (line, missing)
    )
    assert hidden == absent and "There is nothing here" in hidden
    assert answer(world.stranger, line).json() == answer(world.stranger, missing).json()
    assert page(world.finance, Charge(pk=10**30)).status_code == 404


def test_the_api_has_the_figures_of_the_page(world: World, line: Charge, charged: Workload) -> None:
    body = answer(world.vision.member, line).json()
    assert body["line"]["id"] == line.pk
    assert (body["slots"], body["seconds"], body["price_per_gpu_hour"]) == (840, 36_000, "2.500000")
    assert (body["amount"], body["rounding"], body["is_charged"]) == ("25.000000", "0.000000", True)
    assert (body["workload_id"], body["attempt"]) == (str(charged.public_id), 1)
    assert (body["host"], body["gpu"], body["month"]) == ("alpha", 0, "2026-01-01")
    assert body["usage"] == {"coverage": 0.0, "utilisation": None, "hours": [], "whole_hours": False}


# -- use -----------------------------------------------------------------------------------------------------


def test_the_use_of_a_line_is_summed_by_hour_from_minute_rollups(world: World, line: Charge) -> None:
    for minute, utilisation in ((0, 0.2), (1, 0.6), (90, None)):
        write_rollup(line, 60, HELD[0] + timedelta(minutes=minute), utilisation)
    write_rollup(line, 60, HELD[0] - timedelta(minutes=1), 1.0)  # before the line
    write_rollup(line, 60, HELD[1], 1.0)  # after the line
    write_rollup(line, 3600, HELD[0], 0.9)  # not read while minutes are stored
    usage = charge_line(world.finance, line.pk).usage  # type: ignore[union-attr]
    assert usage is not None and not usage.whole_hours
    assert [
        (hour.start, hour.held_seconds, hour.covered_seconds, hour.utilisation) for hour in usage.hours
    ] == [
        (HELD[0], 120, 60, pytest.approx(0.4)),
        (HELD[0] + timedelta(hours=1), 60, 30, None),
    ]
    assert usage.hours[0].utilisation_max == pytest.approx(0.6)
    assert "No sample of this time is stored" not in page(world.finance, line).content.decode()


def test_whole_hours_are_shown_when_the_minutes_are_gone_and_the_page_says_so(
    world: World, line: Charge
) -> None:
    write_rollup(line, 3600, HELD[0] - timedelta(minutes=0), 0.5)
    text = page(world.finance, line).content.decode()
    assert "The first and the last hour may include time of the same run" in text and ">50 %<" in text


def test_without_samples_the_use_is_unknown_and_not_zero(world: World, line: Charge) -> None:
    text = page(world.finance, line).content.decode()
    assert "No sample of this time is stored" in text and "unknown" in text


# -- other kinds of lines ------------------------------------------------------------------------------------


def test_time_that_is_not_charged_says_why(world: World, line: Charge) -> None:
    free = Charge.objects.filter(bucket="unallocated").earliest("pk")
    shown = page(world.finance, free).content.decode()
    assert "This time is not charged: the GPU was free." in shown
    assert set(UNCHARGED_BUCKETS) == {str(bucket) for bucket in ChargeBucket} - set(map(str, CHARGED_BUCKETS))


def test_a_correction_links_its_lines(world: World, line: Charge) -> None:
    copied = {
        field.attname: getattr(line, field.attname)
        for field in Charge._meta.concrete_fields
        if field.attname not in ("id", "corrects_id", "reversal", "month")
    }
    late = {"corrects_id": line.pk, "month": datetime(2026, 2, 1, tzinfo=UTC).date()}
    reversal = Charge.objects.create(
        **copied
        | late
        | {"slots": -840, "slot_seconds": -line.slot_seconds, "charged": -line.charged, "cost": -line.cost},
        reversal=True,
    )
    new = Charge.objects.create(**copied | late | {"bucket": "preempted", "charged": Decimal(0)})
    text = page(world.finance, line).content.decode()
    assert f"Line {reversal.pk}</a> cancels line {line.pk}" in text
    assert f"Line {new.pk}</a> replaces line {line.pk}" in text
    shown = page(world.finance, reversal).content.decode()
    assert "on the statement of February 2026" in shown and "-840/840 × 36,000 s" in shown
    assert answer(world.finance, new).json()["related"] == [line.pk, reversal.pk]


def test_a_line_without_a_price_says_that_nothing_can_be_charged(world: World, line: Charge) -> None:
    copied = {
        field.attname: getattr(line, field.attname)
        for field in Charge._meta.concrete_fields
        if field.attname not in ("id", "price_id")
    }
    unpriced = Charge.objects.create(**copied | {"charged": Decimal(0), "cost": Decimal(0)})
    assert "No price was in force" in page(world.finance, unpriced).content.decode()
    body = answer(world.finance, unpriced).json()
    assert (body["price_per_gpu_hour"], body["amount"], body["rounding"]) == (None, None, "0.000000")


def test_a_slice_is_charged_for_its_slots(world: World, line: Charge) -> None:
    copied = {
        field.attname: getattr(line, field.attname)
        for field in Charge._meta.concrete_fields
        if field.attname != "id"
    }
    part = Charge.objects.create(
        **copied | {"slots": 120, "slot_seconds": 120 * 36_000, "charged": Decimal("3.571428")}
    )
    text = page(world.finance, part).content.decode()
    computed = "120/840 × 36,000 s / 3,600 × 2.500000 = 3.571429"
    assert computed in text and computed in (ROOT / "docs" / "money.md").read_text()
    assert "The amount in the ledger differs by -0.000001" in text
