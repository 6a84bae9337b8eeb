"""Test who gets which FOCUS file, and the checksum of a file that cannot contain its own checksum."""

from __future__ import annotations

import csv
import hashlib
import io
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command

from portal import policy
from portal.errors import Invalid, NotAllowed
from portal.models import Organisation, User
from portal.reads.money.exports import export_download
from portal.services.money import months
from scheduler.models import Workload
from telemetry.models import CostCentreStatement
from tests.portal.charged_january import charged
from tests.telemetry.rows import change_in_place
from tests.world import World

__all__ = ["charged"]
pytestmark = [pytest.mark.django_db, pytest.mark.long]
JANUARY = date(2026, 1, 1)
MICRO = Decimal("0.000001")
AFTER = datetime(2026, 2, 10, tzinfo=UTC)


def file_of(viewer: User, kind: str, **given: str) -> bytes:
    return b"".join(export_download(viewer, JANUARY, {}, {"kind": kind, **given}).parts)


def billed(viewer: User, kind: str = "focus-cost-and-usage") -> Decimal:
    rows = csv.DictReader(io.StringIO(file_of(viewer, kind).decode()))
    return sum((Decimal(row["BilledCost"]) for row in rows), Decimal(0))


@pytest.mark.parametrize("role", ["finance", "auditor", "lead", "member", "team mate"])
def test_each_person_gets_the_visible_charges(world: World, charged: Workload, role: str) -> None:
    visible = policy.visible_charges(world.people[role]).filter(month=JANUARY)
    expected = sum((line.charged for line in visible), Decimal(0))
    for kind in ("focus-cost-and-usage", "focus-1.2-cost-and-usage"):
        # Only people who see all charges get the rounding of invoices.
        assert abs(billed(world.people[role], kind) - expected) < (
            1 if role in ("finance", "auditor") else MICRO
        )
    assert (expected == 0) == (role == "team mate")


def test_only_people_who_see_all_charges_get_invoices_and_costs(world: World, charged: Workload) -> None:
    for role in ("finance", "auditor"):
        assert b"x_OwnerCost" in file_of(world.people[role], "focus-invoice-detail").splitlines()[0]
    assert b"x_OwnerCost" not in file_of(world.people["lead"], "focus-cost-and-usage")
    # An operator with charges sees the cost of a GPU-hour, but gets no file with costs.
    User.objects.filter(pk=charged.owner_id).update(operator=True)
    operator = User.objects.get(pk=charged.owner_id)
    for kind in ("focus-cost-and-usage", "focus-1.2-cost-and-usage"):
        assert b"x_OwnerCost" not in file_of(operator, kind)
        assert billed(operator, kind) == 100
    for kind in ("focus-invoice-detail", "focus-invoice-detail-parquet"):
        with pytest.raises(NotAllowed):
            file_of(world.people["lead"], kind)


def test_the_files_sum_to_the_statements_of_the_cost_centres(world: World, charged: Workload) -> None:
    months.close_month(actor=world.finance, month=JANUARY, now=AFTER)
    total = sum(statement.total for statement in CostCentreStatement.objects.all())
    assert total > 100
    assert billed(world.finance) == billed(world.finance, "focus-invoice-detail") == total


def test_the_issuer_is_the_organisation(world: World, charged: Workload) -> None:
    Organisation.objects.update(name="Institute")
    for kind in ("focus-cost-and-usage", "focus-invoice-detail", "focus-billing-period"):
        rows = csv.DictReader(io.StringIO(file_of(world.finance, kind).decode()))
        assert {row["InvoiceIssuerName"] for row in rows} == {"Institute"}


@pytest.mark.parametrize("kind", ["focus-cost-and-usage", "focus-cost-and-usage-parquet", "lines"])
def test_the_checksum_is_that_of_the_file(world: World, charged: Workload, kind: str) -> None:
    given = {"kind": kind, "checksum": "sha256"}
    download = export_download(world.finance, JANUARY, {}, given)
    digest = hashlib.sha256(file_of(world.finance, kind)).hexdigest()
    name = export_download(world.finance, JANUARY, {}, {"kind": kind}).name
    assert b"".join(download.parts) == f"{digest}  {name}\n".encode()
    assert download.name == f"{name}.sha256"


def test_an_unknown_checksum_is_refused(world: World, charged: Workload) -> None:
    with pytest.raises(Invalid, match="sha256"):
        file_of(world.finance, "lines", checksum="md5")


def test_the_command_checks_both_versions(
    world: World, charged: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("check_focus", "--month", "2026-01")
    assert "CostAndUsage: " in capsys.readouterr().out
    call_command("check_focus", "--month", "2026-01", "--focus-version", "1.2")
    assert "rows obey every rule of FOCUS 1.2" in capsys.readouterr().out


def test_the_command_names_a_broken_rule(
    world: World, charged: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    months.close_month(actor=world.finance, month=JANUARY, now=AFTER)
    statement = CostCentreStatement.objects.earliest("number")
    change_in_place(statement, total=statement.total + 1)
    with pytest.raises(CommandError, match="broken rule"):
        call_command("check_focus", "--month", "2026-01")
    assert "BilledCost: sum of an invoice in InvoiceDetail is its total" in capsys.readouterr().out
