"""Test that no file of a closed month changes, whatever changes or becomes known after its close."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import F, Value
from django.db.models.functions import Concat
from django.test import Client
from django.urls import reverse

from portal.models import Organisation, User
from portal.reads.money.exports import document_currencies, export_download
from portal.services.money import months
from scheduler.models import Allocation, Host, Pool, Project, Team, Workload
from telemetry.exports.registry import EXPORT_KINDS
from telemetry.models import BillingZone, CostCentre, StatementLine
from telemetry.money import statements
from telemetry.money.billing_months import forget_calendar
from telemetry.money.charges import charge_all_gpus
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.telemetry.rows import (
    at,
    billing_currency,
    directory,
    end_hold,
    hold,
    host_state,
    price,
    price_factor,
    reservation,
    split,
    workload,
)
from tests.telemetry.test_currencies import APRIL, MARCH, priced_world
from tests.telemetry.test_rollups import write_samples
from tests.world import A100, H100, World, units_of

pytestmark = pytest.mark.django_db
JUNE = dt.date(2026, 6, 1)
AFTER_MARCH, AFTER_APRIL = at(2, day=1).replace(month=4), at(2, day=1).replace(month=5)
LATER = at(12, day=2).replace(month=5)
OLD_NAMES = ("CC-100", "CC-200", "CC-300", "CC-110")


@pytest.fixture
def closed(world: World) -> World:
    """Close March, charged in EUR, and April, charged in JPY with a correction of March.

    March has work of low priority at a factor, a split, a booking that is used in part, measured use, and
    idle time that teams pay for. Work still runs at the end of each month.
    """
    priced_world(world, "EUR")
    for model, cost in ((H100, "400.5"), (A100, "150")):
        price(model, cost, since=at(0, day=1).replace(month=4), currency="JPY")
    billing_currency("JPY", APRIL)
    directory(*OLD_NAMES, name="Old name", postal_address="Old street\nOld town", purchase_order="PO-1")
    price_factor("0.8", since=at(0, day=1), priority=0)
    split(world.vision, at(0, day=10), CC_100="70", CC_200="30")
    units = units_of(world.hosts["alpha"])
    low = workload(world, world.vision, priority=0)
    hold(low, units[0], at(9), at(17, 7, 13, day=12), end_code="finished")
    write_samples(units[0], at(9), 181)
    booked = reservation(world, world.language, units[3:5], at(9, day=6), at(17, day=9))
    work = workload(world, world.language)
    hold(work, units[3], at(12, day=6), at(17, day=7), end_code="finished", reservation=booked)
    in_march = hold(workload(world, world.vision), units[1], at(9, day=30))
    close(world, MARCH, AFTER_MARCH)
    end_hold(in_march, at(21, day=30), "finished")
    hold(workload(world, world.robotics), units[2], at(9, day=30).replace(month=4))
    close(world, APRIL, AFTER_APRIL)
    return world


def close(world: World, month: dt.date, now: dt.datetime) -> None:
    charge_all_gpus(now)  # a late end makes rollups due
    while roll_up_due_buckets(now).buckets:  # one run rolls up a limited number of buckets
        pass
    statements.set_idle_payer(month, "use")
    charge_all_gpus(now)
    months.close_month(actor=world.finance, month=month, now=now, missing_samples_reason="no agent runs")


def files_of(viewer: User) -> dict[str, str]:
    """Return the SHA-256 digest of every file of March and April, by month, kind and statement."""
    found = {}
    for month in (MARCH, APRIL):
        for name, kind in EXPORT_KINDS.items():
            for where, given in wanted_files(viewer, month) if kind.one_cost_centre else [({}, {})]:
                download = export_download(viewer, month, where, {"kind": name, **given})
                digest = hashlib.sha256(b"".join(download.parts)).hexdigest()
                found[f"{month:%Y-%m} {download.name}"] = digest
    return found


OTHER_KINDS = ("statement", "lines", "xlsx", "focus-cost-and-usage")


def files_of_others(world: World) -> dict[str, str]:
    """Return the digests of files with a part of the charges: of a lead, of a member, and with filters."""
    team, work = world.vision.team.pk, Workload.objects.earliest("pk").pk
    wanted: list[tuple[str, User, dict[str, Any]]] = [
        ("lead", world.vision.lead, {}),
        ("member", world.vision.member, {}),
        ("filtered", world.finance, {"team": team, "bucket": ("reserved_unused", "used")}),
        ("corrections", world.finance, {"corrected_month": "any"}),
        ("day", world.finance, {"day": dt.date(2026, 3, 7), "workload": work}),
    ]
    found = {}
    for month in (MARCH, APRIL):
        for name, viewer, where in wanted:
            for kind in OTHER_KINDS:
                parts = export_download(viewer, month, where, {"kind": kind}).parts
                found[f"{month:%Y-%m} {kind} {name}"] = hashlib.sha256(b"".join(parts)).hexdigest()
        for viewer in (world.finance, world.vision.lead):
            found |= {f"{viewer} {name}": digest for name, digest in tables_of(viewer, month).items()}
    return found


def tables_of(viewer: User, month: dt.date) -> dict[str, str]:
    """Return the digests of the CSV files of the tree, of the days and of the changes of a month."""
    client, text = Client(), f"{month:%Y-%m}"
    client.force_login(viewer)
    tree = {"month": text, "format": "csv"}
    answers: dict[str, Any] = {
        **{f"tree by {by}": client.get(reverse("chargeback"), {**tree, "by": by}) for by in ("team", "user")},
        "days": client.get(reverse("chargeback-days", args=[text])),
        "changes": client.get(reverse("chargeback-changes", args=[text])),
    }
    return {
        f"{text} {name}": hashlib.sha256(b"".join(answer)).hexdigest() for name, answer in answers.items()
    }


def wanted_files(viewer: User, month: dt.date) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Return the filter and the option of each statement of a month."""
    return [
        ({"cost_centre": code}, {"currency": currency})
        for code in OLD_NAMES
        for currency in document_currencies(viewer, month, code)
    ]


def rename_the_fleet(world: World) -> None:
    for rows in (Team.with_removed, Project.objects, Pool.with_removed, Host.with_removed, Workload.objects):
        rows.update(name=Concat(Value("=New "), F("name")))  # type: ignore[attr-defined]


def rename_people(world: World) -> None:
    User.objects.update(first_name="New", last_name="New")
    Organisation.objects.update(name="New", tax_text="New")


def change_the_directory(world: World) -> None:
    CostCentre.objects.update(name="=New", postal_address="New", purchase_order="New", retired_from=LATER)


def set_a_time_zone(world: World) -> None:
    BillingZone.objects.create(first_month=JUNE, time_zone="Asia/Tokyo", created_at=AFTER_APRIL)
    forget_calendar()


def change_the_currency(world: World) -> None:
    billing_currency("CHF", JUNE)
    price(H100, "3", since=at(0, day=1).replace(month=6), currency="CHF")


def end_late(world: World) -> None:
    running = Allocation.objects.get(period__upper_inf=True)
    end_hold(running, at(21, day=30).replace(month=4), "finished")
    host_state(world.hosts["alpha"], at(3, day=11), lease="silent")
    host_state(world.hosts["alpha"], at(5, day=11))


def sample_late(world: World) -> None:
    write_samples(units_of(world.hosts["alpha"])[0], at(9, 31), 174)
    roll_up_due_buckets(LATER)


CHANGES: dict[str, Callable[[World], object]] = {
    "names of the fleet": rename_the_fleet,
    "names of people and of the organisation": rename_people,
    "directory of cost centres": change_the_directory,
    "currency": change_the_currency,
    "time zone": set_a_time_zone,
    "price": lambda world: price(H100, "999", since=LATER, currency="JPY"),
    "price factor": lambda world: price_factor("0.1", since=LATER, priority=0),
    "split": lambda world: split(world.vision, AFTER_APRIL, LATER, CC_900="100"),
    "late end and late silence": end_late,
    "late samples": sample_late,
}


@pytest.mark.long  # test_exports.py has one file of each kind in the short part
def test_no_change_after_the_close_alters_a_file_of_the_month(closed: World) -> None:
    before, others = files_of(closed.finance), files_of_others(closed)
    assert len(before) > 2 * len(EXPORT_KINDS)
    for change in CHANGES.values():
        change(closed)
    charge_all_gpus(LATER)
    corrected = StatementLine.objects.filter(statement__month=dt.date(2026, 5, 1))
    assert set(corrected.values_list("corrected_month", "currency")) >= {(MARCH, "EUR"), (APRIL, "JPY")}
    after = files_of(closed.finance)
    assert [name for name, digest in before.items() if after.get(name) != digest] == []
    assert list(before) == list(after)
    after = files_of_others(closed)
    assert [name for name, digest in others.items() if after.get(name) != digest] == []
