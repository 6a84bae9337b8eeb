"""Test usage evidence: it follows the rollups until the month of its line is closed."""

from __future__ import annotations

import datetime as dt
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from telemetry.models import Charge, ChargeEvidence, EvidenceDue, Rollup
from telemetry.money import statements, usage_evidence
from telemetry.money.charges import charge_all_gpus
from telemetry.money.statement_lines import statement_lines
from telemetry.reads.chargeback import charges_by
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.telemetry.rows import at, begin_charges_at, end_hold, hold, rates, workload
from tests.telemetry.test_rollups import write_rollup, write_samples
from tests.world import World, units_of, world_fixture

pytestmark = pytest.mark.django_db
MARCH = dt.date(2026, 3, 1)
AFTER = dt.datetime(2026, 4, 1, 2, 0, tzinfo=dt.UTC)


def coverage(**where: Any) -> float:
    """Return the covered share of the held lines."""
    lines = Charge.objects.filter(allocation__isnull=False, **where).select_related("evidence")
    held = sum(line.slot_seconds for line in lines)
    return sum(line.evidence.covered_slot_seconds for line in lines) / held


def test_evidence_is_updated_after_its_line_was_written(rates: World, root: Path) -> None:
    """A line is written one minute after its end, before its last minutes are rolled up."""
    unit = units_of(rates.hosts["alpha"])[0]
    hold(workload(rates, rates.vision), unit, at(9), at(10), end_code="finished")
    write_samples(unit, at(9), 264)
    roll_up_due_buckets(at(9, 44))
    charge_all_gpus(at(10, 1))
    charged = Charge.objects.get(allocation__isnull=False).charged
    shown = [f"| 10:01 | {coverage():.1%} | {charged:.2f} |"]
    assert coverage() == pytest.approx(2580 / 3600)
    write_samples(unit, at(9, 44), 97)
    roll_up_due_buckets(at(10, 5))
    charge_all_gpus(at(10, 6))
    assert coverage() == pytest.approx(1)
    shown += [f"| 10:06 | {coverage():.1%} | {Charge.objects.get(allocation__isnull=False).charged:.2f} |"]
    table = (root / "docs" / "money.md").read_text().partition("<!-- evidence")[2].partition("<!-- /evid")[0]
    documented = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert documented == [row.replace("%", " %") for row in shown]
    evidence = ChargeEvidence.objects.get()
    assert evidence.used_slot_seconds == pytest.approx(840 * 3600 / 2)
    assert not EvidenceDue.objects.exists()


def test_updating_evidence_again_changes_nothing(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    hold(workload(rates, rates.vision), unit, at(9), at(10), end_code="finished")
    write_samples(unit, at(9), 361)
    roll_up_due_buckets(at(10, 5))
    charge_all_gpus(at(10, 6))
    before = list(ChargeEvidence.objects.order_by("pk").values_list())
    EvidenceDue.objects.create(host=rates.hosts["alpha"], hour=at(9))
    assert usage_evidence.update_due_evidence(at(10, 30)) == 1
    assert list(ChargeEvidence.objects.order_by("pk").values_list()) == before


def test_only_lines_of_held_time_have_evidence(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    hold(workload(rates, rates.vision), unit, at(9), at(10), end_code="finished")
    charge_all_gpus(at(11, 5))
    assert set(Charge.objects.filter(evidence__isnull=False).values_list("bucket", flat=True)) == {"used"}
    assert list(ChargeEvidence.objects.values_list("used_slot_seconds", "covered_slot_seconds")) == [
        (None, 0)
    ]


def test_every_table_shows_the_updated_evidence(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    hold(workload(rates, rates.vision), unit, at(9), at(10), end_code="finished")
    charge_all_gpus(at(10, 5))
    write_samples(unit, at(9), 361)
    roll_up_due_buckets(at(10, 6))
    charge_all_gpus(at(10, 7))
    (line,) = [line for line in statement_lines(MARCH) if line.bucket == "used"]
    assert (line.covered_share, line.used_share) == (pytest.approx(1), pytest.approx(0.5))
    (row,) = charges_by("team", MARCH, bucket="used").groups
    assert row.coverage == pytest.approx(1)


def test_the_evidence_of_a_reversal_is_the_negative_of_its_line_even_after_late_samples(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.language), unit, at(9))
    charge_all_gpus(at(11, 5))
    end_hold(allocation, at(10, 30), "killed_at_grace", checkpoint=at(9, 30))
    charge_all_gpus(at(11, 6))
    write_samples(unit, at(9), 361)
    roll_up_due_buckets(at(11, 10))
    charge_all_gpus(at(11, 11))
    reversals = Charge.objects.filter(reversal=True, allocation=allocation)
    assert reversals
    for reversal in reversals:
        original = ChargeEvidence.objects.get(charge=reversal.corrects)
        assert original.covered_slot_seconds > 0
        assert reversal.evidence.covered_slot_seconds == -original.covered_slot_seconds
        assert reversal.evidence.used_slot_seconds == -original.used_slot_seconds
    lines = Charge.objects.filter(allocation=allocation).select_related("evidence")
    assert sum(line.evidence.covered_slot_seconds for line in lines) == pytest.approx(840 * 3600)


def test_lines_that_share_an_hour_divide_its_evidence_by_minutes(rates: World) -> None:
    unit = units_of(rates.hosts["beta"])[0]
    allocation = hold(
        workload(rates, rates.language), unit, at(9), at(10), end_code="killed_at_grace", checkpoint=at(9, 30)
    )
    write_samples(unit, at(9, 30, 10), 180)
    roll_up_due_buckets(at(10, 5))
    charge_all_gpus(at(10, 6))
    first, second = Charge.objects.filter(allocation=allocation).order_by("start")
    assert (first.bucket, second.bucket) == ("used", "preempted")
    # The first sample covers 30 seconds before it, of which 20 belong to the first line.
    assert first.evidence.covered_slot_seconds == pytest.approx(840 * 20)
    assert second.evidence.covered_slot_seconds == pytest.approx(840 * 1800)


def test_evidence_uses_the_hour_if_its_minutes_were_deleted(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9), at(10), end_code="finished")
    write_rollup(3600, at(9), unit, allocation, 3540)
    charge_all_gpus(at(10, 6))
    write_samples(unit, at(9, 30, 15), 1)
    roll_up_due_buckets(at(10, 10))
    charge_all_gpus(at(10, 11))
    assert coverage() == pytest.approx(3540 / 3600)


def write_closed_march(rates: World) -> World:
    """Close March, in which one GPU was used for an hour that has samples of half an hour."""
    unit = units_of(rates.hosts["alpha"])[0]
    begin_charges_at(rates, at(0, day=31))
    hold(workload(rates, rates.vision), unit, at(9, day=31), at(10, day=31), end_code="finished")
    write_samples(unit, at(9, day=31), 181)
    roll_up_due_buckets(AFTER)
    charge_all_gpus(AFTER)
    statements.close_month(
        month=MARCH, closed_by=rates.finance, now=AFTER, missing_samples_reason="no agent runs"
    )
    return rates


closed_march = world_fixture(write_closed_march, after=rates)


def test_evidence_of_a_closed_month_stays_after_late_samples(closed_march: World) -> None:
    before = list(ChargeEvidence.objects.order_by("pk").values_list())
    write_samples(units_of(closed_march.hosts["alpha"])[0], at(9, 31, day=31), 174)
    later = AFTER + timedelta(hours=1)
    roll_up_due_buckets(later)
    hour = Rollup.objects.get(resolution=3600, bucket=at(9, day=31), allocation__isnull=False)
    assert hour.covered_seconds > 3500
    charge_all_gpus(later)
    assert not EvidenceDue.objects.exists()
    assert list(ChargeEvidence.objects.order_by("pk").values_list()) == before


def test_the_database_refuses_changes_of_the_evidence_of_a_closed_month(closed_march: World) -> None:
    evidence = ChargeEvidence.objects.get()
    for change in (
        lambda: ChargeEvidence.objects.update(covered_slot_seconds=1),
        lambda: ChargeEvidence.objects.all()._raw_delete(using="default"),
        lambda: ChargeEvidence.objects.create(
            charge=Charge.objects.filter(evidence=None, month=MARCH).first(),
            covered_slot_seconds=0,
            updated_at=AFTER,
        ),
    ):
        with pytest.raises(DatabaseError, match="the month is not open"), transaction.atomic():
            change()
    evidence.refresh_from_db()


def test_a_correction_of_a_closed_month_takes_back_the_frozen_evidence(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    begin_charges_at(rates, at(0, day=31))
    allocation = hold(workload(rates, rates.vision), unit, at(9, day=31))
    write_samples(unit, at(9, day=31), 181)
    roll_up_due_buckets(AFTER)
    charge_all_gpus(AFTER)
    statements.close_month(
        month=MARCH, closed_by=rates.finance, now=AFTER, missing_samples_reason="no agent runs"
    )
    frozen = ChargeEvidence.objects.get(charge__start=at(9, day=31))
    end_hold(allocation, at(10, day=31), "finished")
    charge_all_gpus(AFTER + timedelta(hours=1))
    reversal = Charge.objects.get(reversal=True, corrects=frozen.charge)
    assert reversal.month == dt.date(2026, 4, 1)
    assert reversal.evidence.covered_slot_seconds == -frozen.covered_slot_seconds < 0


def test_the_number_of_queries_does_not_depend_on_the_number_of_lines(rates: World) -> None:
    units = units_of(rates.hosts["alpha"])
    counts = []
    for hour, some in ((9, units[:1]), (12, units)):
        for unit in some:
            hold(workload(rates, rates.vision), unit, at(hour), at(hour + 1), end_code="finished")
        charge_all_gpus(at(hour + 1, 5))
        EvidenceDue.objects.create(host=rates.hosts["alpha"], hour=at(hour))
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert usage_evidence.update_due_evidence(at(hour + 1, 6)) == len(some)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_one_run_takes_a_limited_number_of_hours(rates: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_evidence, "HOURS_PER_TRANSACTION", 2)
    for hour in range(6):
        EvidenceDue.objects.create(host=rates.hosts["alpha"], hour=at(hour))
    usage_evidence.update_due_evidence(at(12), max_hours=4)
    assert list(EvidenceDue.objects.values_list("hour", flat=True)) == [at(4), at(5)]
