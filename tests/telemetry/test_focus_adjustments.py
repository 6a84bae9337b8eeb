"""Test credits and adjustments in the FOCUS files: their rows, their sums, and whose they are."""

from __future__ import annotations

from decimal import Decimal

import pytest

from telemetry.exports.export_model import ExportScope
from telemetry.exports.focus.check import check_focus_month
from telemetry.models import Charge, ChargeCell, CostCentreStatement
from tests.telemetry.test_adjustments import approved, charge, credit_of, march
from tests.telemetry.test_focus import DETAIL, OPTIONS, VERSIONS, billed, close, everything, read
from tests.telemetry.test_statements import MARCH, busy_march
from tests.world import World

__all__ = ["busy_march", "march"]
pytestmark = [pytest.mark.django_db, pytest.mark.long]


def adjusted(world: World) -> World:
    """Credit 1.00 of a charge line, and add 7.25 to a cost centre without charges."""
    approved(world, "-1.00", **credit_of(charge()))
    approved(world, "7.25", cost_centre="CC-900", reason="=workshop")
    return world


@pytest.mark.parametrize("closed", [True, False])
def test_an_adjustment_is_a_row_of_its_category_and_the_invoice_sums_to_its_total(
    march: World, closed: bool
) -> None:
    adjusted(march)
    if closed:
        close(march)
    rows = {row["x_Bucket"]: row for row in read() if row["x_Bucket"] in ("credit", "adjustment")}
    assert rows["credit"]["ChargeCategory"] == "Credit"
    assert rows["adjustment"]["ChargeCategory"] == "Adjustment"
    assert Decimal(rows["credit"]["BilledCost"]) == Decimal("-1.00")
    assert rows["credit"]["x_UserName"] == charge().user_name
    assert "=workshop" in rows["adjustment"]["ChargeDescription"]
    assert not rows["adjustment"]["ChargeDescription"].startswith("=")
    details = {row["InvoiceDetailId"]: row for row in read(DETAIL)}
    detail = details[rows["credit"]["InvoiceDetailId"]]
    assert (detail["ChargeCategory"], Decimal(detail["BilledCost"])) == ("Credit", Decimal("-1.00"))
    assert check_focus_month(MARCH, everything(), OPTIONS).failures == ()
    if closed:
        for statement in CostCentreStatement.objects.filter(statement__month=MARCH):
            own = [row for row in read() if row["InvoiceId"] == statement.number]
            assert billed(own) == statement.total


@pytest.mark.parametrize("version", VERSIONS)
def test_the_file_of_a_closed_month_with_adjustments_stays_the_same(march: World, version: str) -> None:
    close(adjusted(march))
    before = read(version=version)  # type: ignore[arg-type]
    march.finance.username = "renamed"
    march.finance.save(update_fields=["username"])
    assert read(version=version) == before  # type: ignore[arg-type]


def test_a_person_gets_only_credits_of_their_own_work(march: World) -> None:
    adjusted(march)
    user = charge().user_id
    scope = ExportScope(
        "own", Charge.objects.filter(user=user), ChargeCell.objects.filter(user=user), {}, False
    )
    assert [row["x_Bucket"] for row in read(scope=scope) if row["ChargeCategory"] != "Usage"] == ["credit"]
    filtered = ExportScope("all", Charge.objects.all(), None, {"cost_centre": "CC-900"}, True)
    assert [row["x_Bucket"] for row in read(scope=filtered)] == ["adjustment"]
