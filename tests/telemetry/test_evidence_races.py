"""Test usage evidence that is updated while its line is written, or while its month is closed.

Each race runs with its guard, and again without it to show that the guard is needed.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable

import pytest
from django.db import connection, transaction

from scheduler.models import Allocation
from telemetry.models import ChargeEvidence, EvidenceDue, Statement
from telemetry.money import charges, statements, usage_evidence
from telemetry.money.charges import charge_all_gpus
from tests.concurrency.conftest import race
from tests.telemetry.rows import at, hold, workload
from tests.telemetry.test_races import committed_world, rates
from tests.telemetry.test_rollups import write_rollup
from tests.world import World, units_of

__all__ = ["committed_world", "rates"]
MARCH = dt.date(2026, 3, 1)
AFTER = dt.datetime(2026, 4, 1, 2, 0, tzinfo=dt.UTC)


@pytest.fixture
def held(rates: World, monkeypatch: pytest.MonkeyPatch) -> Allocation:
    """Return an allocation of an hour whose charge run does not update evidence by itself."""
    monkeypatch.setattr(charges, "update_due_evidence", lambda now: 0)
    unit = units_of(rates.hosts["alpha"])[0]
    return hold(workload(rates, rates.vision), unit, at(9), at(10), end_code="finished")


def mark_new_rollup(allocation: Allocation) -> None:
    with transaction.atomic():
        write_rollup(3600, at(9), allocation.unit, allocation, 3600)
        EvidenceDue.objects.create(host_id=allocation.unit.gpu.host_id, hour=at(9))


def run_update_while_lines_are_written(allocation: Allocation) -> list[object]:
    """Write lines from old rollups. The rollup changes and evidence is updated before the commit."""
    written = threading.Event()

    def write_lines() -> None:
        with transaction.atomic():
            charge_all_gpus(at(10, 5))
            written.set()
            threading.Event().wait(1.0)  # the update begins during this wait

    def update() -> int:
        written.wait(5)
        mark_new_rollup(allocation)
        return usage_evidence.update_due_evidence(at(10, 6))

    return race([write_lines, update])


def test_an_update_of_evidence_waits_for_lines_that_are_being_written(held: Allocation) -> None:
    assert run_update_while_lines_are_written(held) == [None, 1]
    assert ChargeEvidence.objects.get().covered_slot_seconds == 840 * 3600


def test_without_its_locks_an_update_misses_a_line_that_is_being_written(
    held: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_evidence, "lock_for_update", lambda: None)
    monkeypatch.setattr(usage_evidence, "lock_ledger", lambda: None)
    assert run_update_while_lines_are_written(held) == [None, 0]
    assert ChargeEvidence.objects.get().covered_slot_seconds == 0


def test_two_concurrent_updates_take_each_mark_once(held: Allocation) -> None:
    charge_all_gpus(at(10, 5))
    mark_new_rollup(held)
    done = race([lambda: usage_evidence.update_due_evidence(at(10, 6))] * 2)
    assert sorted(done) == [0, 1]  # type: ignore[type-var]
    assert ChargeEvidence.objects.get().covered_slot_seconds == 840 * 3600


def close_during(update: Callable[[], object], rates: World) -> list[object]:
    """Close March in a transaction that commits about 1 s after ``update`` has begun."""
    closed = threading.Event()

    def close() -> str:
        with transaction.atomic():
            state = statements.close_month(month=MARCH, closed_by=rates.finance, now=AFTER).state
            closed.set()
            threading.Event().wait(1.0)
        return state

    def run() -> object:
        closed.wait(5)
        return update()

    return race([close, run])


def test_an_update_waits_for_a_close_and_then_does_not_change_the_evidence(
    held: Allocation, rates: World
) -> None:
    charge_all_gpus(AFTER)

    def update() -> int:
        mark_new_rollup(held)
        return usage_evidence.update_due_evidence(AFTER)

    assert close_during(update, rates) == ["closed", 0]
    assert ChargeEvidence.objects.get().covered_slot_seconds == 0
    assert Statement.objects.get(month=MARCH).state == "closed"


def test_without_the_lock_of_the_months_the_database_refuses_the_update(
    held: Allocation, rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge_all_gpus(AFTER)
    monkeypatch.setattr(usage_evidence, "lock_open_months", set)

    def update() -> int:
        mark_new_rollup(held)
        return usage_evidence.update_due_evidence(AFTER)

    closed, refused = close_during(update, rates)
    assert closed == "closed"
    assert "the month is not open" in str(refused)
    assert ChargeEvidence.objects.get().covered_slot_seconds == 0
    assert connection.in_atomic_block is False
