"""Test the demo's past: the real engine creates it, and its rows are marked as simulated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.backends.postgresql.psycopg_any import NumericRange
from django.test.utils import CaptureQueriesContext

from demo import organisation, past_rows, simulated_past
from demo.workload_demand import generate_demand
from portal.wording import expected_start_texts
from scheduler.core.explain.start_ranges import MIN_OUTCOMES
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import (
    Allocation,
    BoundUnit,
    Decision,
    Gpu,
    Host,
    Pool,
    Run,
    StartEstimate,
    Unit,
    Workload,
)
from scheduler.queue import start_estimates

NOW = datetime(2026, 11, 1, 2, 30, tzinfo=UTC)  # the day with the shortest simulated past: just over a month


@pytest.fixture
def demo(transactional_db: None) -> None:  # the simulation takes longer than a transaction may be idle
    organisation.create_organisation(NOW)
    for planned in organisation.DEMO_HOSTS:
        host = Host.objects.get(name=planned.name)
        count, name = planned.simulate.split("x", 1)
        for index in range(int(count)):
            _gpu(host, index, name, slices=7 if planned.simulate_mig and index >= 6 else 0)


def _gpu(host: Host, index: int, name: str, slices: int) -> None:
    gpu = Gpu.objects.create(
        host=host,
        pool_id=host.pool_id,
        index=index,
        uuid=f"GPU-{host.name}-{index}",
        model=name,
        memory_mib=81_559,
        created_at=NOW,
    )
    size = SLOTS_PER_GPU // (slices or 1)
    for part in range(slices or 1):
        Unit.objects.create(
            gpu=gpu,
            profile="1g.10gb" if slices else "",
            uuid=f"{gpu.uuid}-{part}",
            slots=NumericRange(gpu.first_slot + part * size, gpu.first_slot + (part + 1) * size),
            memory_mib=10_240,
            created_at=NOW,
        )


def test_the_same_seed_gives_the_same_demand() -> None:
    start = organisation.first_of_last_month(NOW)
    assert generate_demand(start=start, end=NOW, seed=3) == generate_demand(start=start, end=NOW, seed=3)
    assert generate_demand(start=start, end=NOW, seed=3) != generate_demand(start=start, end=NOW, seed=4)


def test_weekends_have_less_demand_and_most_workloads_request_one_gpu() -> None:
    pieces = generate_demand(start=organisation.first_of_last_month(NOW), end=NOW, seed=1)
    weekend = sum(1 for piece in pieces if piece.at.weekday() >= 5)
    assert weekend / len(pieces) < 0.2
    assert sum(1 for piece in pieces if piece.units == 1) / len(pieces) > 0.6


@pytest.mark.long
def test_the_past_is_written_once_by_the_real_engine_and_marked_as_simulated(demo: None) -> None:
    past = simulated_past.simulate_past(NOW)
    with CaptureQueriesContext(connection) as asked:
        past_rows.write_past(past)
    statements = [query["sql"] for query in asked]
    hosts_locked = next(
        number for number, sql in enumerate(statements) if sql.startswith('UPDATE "scheduler_host"')
    )
    rows_written = [
        number for number, sql in enumerate(statements) if sql.startswith('INSERT INTO "scheduler_decision"')
    ]
    assert rows_written and max(rows_written) < hosts_locked, (
        "agents can't renew their leases while the past is written"
    )
    assert len(past_rows.utilisation_by_workload(past)) == Workload.objects.count() > 1500
    assert not Workload.objects.filter(simulated=False).exists()
    assert Allocation.objects.filter(period__endswith__gt=NOW).count() == 0
    assert Decision.objects.filter(kind="evicted").exists()
    assert BoundUnit.objects.exists()
    held = sum(
        (a.slots.upper - a.slots.lower) * (a.period.upper - a.period.lower).total_seconds()
        for a in Allocation.objects.all()
    )
    capacity = Gpu.objects.count() * SLOTS_PER_GPU * (NOW - past.start).total_seconds()
    assert 0.4 < held / capacity < 0.95
    assert Unit.objects.filter(created_at__gt=past.start).count() == 0
    assert_estimates_have_outcomes()


def assert_estimates_have_outcomes() -> None:
    """Assert that each recorded wait has an expected start and an actual start."""
    rows = list(StartEstimate.objects.select_related("workload"))
    assert len(rows) > MIN_OUTCOMES and all(row.started and row.over_at for row in rows)
    for row in rows:
        placed = Run.objects.get(workload=row.workload, attempt=row.attempt + 1).placed_at
        assert row.over_at == placed > row.told_at and row.expected_start > row.told_at
        assert row.latest is None or row.latest >= row.expected_start
    assert (
        any(row.latest is not None for row in rows)
        and len({row.expected_start != row.over_at for row in rows}) == 2
    )
    shared = Pool.objects.get(slug="shared")
    record = start_estimates.past_starts_by_pool([shared.pk], NOW)[shared.pk]
    assert record.has_enough_outcomes and record.started_count == record.simulated
    assert start_estimates.likely_range(record, NOW + timedelta(hours=1), NOW) is not None
    assert "All of these waits are simulated" in expected_start_texts.forecast_accuracy_text(record)
