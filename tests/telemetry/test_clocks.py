"""Test samples of hosts with a wrong clock: unchanged, corrected, or refused and counted as lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from agent.protocol import SampleBatch
from scheduler.models import Unit
from telemetry.health.rules import apply_rules_to_events
from telemetry.ingest import redis_client
from telemetry.ingest.agent_api import committed_sequence, enqueue_batch
from telemetry.ingest.clock_correction import CORRECTED_UP_TO_SECONDS, UNCHANGED_UP_TO_SECONDS
from telemetry.ingest.samples import IngestResult, drain_stream
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.models import HealthEvent, ReadingFault, Sample, SampleGap
from tests.seeds import first_cases
from tests.telemetry.rows import at, batch, hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
NOW = at(10, 0)
BOOT_UPTIME = 1_000.0  # CLOCK_BOOTTIME of the hosts at 09:00


@pytest.fixture(autouse=True)
def empty_stream() -> Iterator[None]:
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)
    yield
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)


def skewed(
    sequence: int, unit: Unit, start: datetime, count: int, ahead: float, *, error: float = 0.01
) -> SampleBatch:
    """Return a batch whose first sample was read at ``start``, by a clock that is ``ahead`` seconds ahead."""
    true = batch(sequence, unit, start, count)
    rows = [
        dataclasses.replace(row, ts=row.ts + ahead, uptime=BOOT_UPTIME + row.ts - at(9).timestamp())
        for row in true.rows
    ]
    return dataclasses.replace(
        true,
        rows=rows,
        boot_id="boot",
        server_offset=at(9).timestamp() - BOOT_UPTIME,
        server_offset_error=error,
    )


def ingest(world: World, *batches: SampleBatch, now: datetime = NOW) -> IngestResult:
    for each in batches:
        enqueue_batch(world.hosts["alpha"].pk, each, now)
    return drain_stream(redis_client.redis_client(), now)


def times() -> list[datetime]:
    return list(Sample.objects.order_by("ts").values_list("ts", flat=True))


@pytest.mark.parametrize("ahead", [0.0, 2.0, -2.0])
def test_a_clock_up_to_2_seconds_wrong_changes_nothing(world: World, ahead: float) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    assert ingest(world, skewed(1, unit, at(9, 50), 1, ahead)).rows == 1
    assert times() == [at(9, 50) + timedelta(seconds=ahead)]
    assert not ReadingFault.objects.exists()


@pytest.mark.parametrize("ahead", first_cases(2, [2.1, -2.1, 599.0, -600.0]))
def test_a_clock_up_to_10_minutes_wrong_is_corrected_and_marked(world: World, ahead: float) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    done = ingest(world, skewed(1, unit, at(9, 50), 2, ahead))
    assert (done.rows, done.rejected, done.impossible) == (2, 0, 0)
    assert times() == [at(9, 50), at(9, 50, 10)]
    fault = ReadingFault.objects.get()
    assert (fault.reading, fault.kind, fault.count) == ("ts", "clock_corrected", 2)
    assert (fault.last_at, fault.last_value) == (at(9, 50, 10), ahead)
    assert not HealthEvent.objects.exists()


def test_the_error_of_the_measurement_counts_for_the_host(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    ingest(world, skewed(1, unit, at(9, 50), 1, 5.0, error=3.0))
    assert times() == [at(9, 50, 5)]
    assert (UNCHANGED_UP_TO_SECONDS, CORRECTED_UP_TO_SECONDS) == (2, 600)


def test_a_corrected_sample_belongs_to_the_work_of_its_true_time(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9, 40), at(9, 48), end_code="finished")
    second = hold(workload(world, world.language), unit, at(9, 49))
    ingest(world, skewed(1, unit, at(9, 50), 1, -240.0))  # its clock says 09:46
    assert Sample.objects.get().allocation_id == second.pk


@pytest.mark.parametrize(
    ("ahead", "detail"), [(-3_300.0, "3300 s behind the server"), (601.0, "601 s ahead")]
)
def test_samples_with_a_clock_error_above_the_limit_are_acknowledged_discarded_and_reported(
    world: World, ahead: float, detail: str
) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    ended = hold(workload(world, world.vision), unit, at(8), at(9), end_code="finished")
    ingest(world, batch(1, unit, at(9, 40), 2))
    done = ingest(world, skewed(2, unit, at(9, 50), 2, ahead), skewed(3, unit, at(9, 50, 20), 2, ahead))
    assert (done.rows, done.rejected) == (0, 4)
    assert committed_sequence(host.pk) == 3
    assert not Sample.objects.filter(allocation_id=ended.pk).exists()
    gap = SampleGap.objects.get()
    assert (gap.cause, gap.start, gap.end) == ("clock", at(9, 40, 10), at(9, 50, 30))
    fault = ReadingFault.objects.get()
    assert (fault.kind, fault.count, fault.last_value) == ("clock_refused", 4, ahead)
    event = HealthEvent.objects.get()
    assert (event.code, event.host) == ("clock:skew", host) and detail in event.detail
    # More refused samples extend the gap, and are not reported again on the same day.
    ingest(world, skewed(4, unit, at(9, 50, 40), 1, ahead))
    assert [(gap.start, gap.end) for gap in SampleGap.objects.all()] == [(at(9, 40, 10), at(9, 50, 40))]
    apply_rules_to_events(NOW)
    assert HealthEvent.objects.get().action_taken == "warn"


def test_a_clock_that_is_set_back_and_forth_only_loses_the_samples_in_between(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    parts = [
        skewed(1, unit, at(9, 30), 3, 0.0),
        skewed(2, unit, at(9, 30, 30), 3, -3_600.0),
        skewed(3, unit, at(9, 31), 3, 0.0),
    ]
    done = ingest(world, joined(parts))
    assert (done.rows, done.rejected) == (6, 3)
    assert times() == [at(9, 30, s) for s in (0, 10, 20)] + [at(9, 31, s) for s in (0, 10, 20)]


def joined(parts: list[SampleBatch]) -> SampleBatch:
    return dataclasses.replace(parts[0], rows=[row for part in parts for row in part.rows])


def test_samples_of_agents_that_do_not_measure_the_clock_are_stored_as_before(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    older = batch(1, unit, at(9, 50), 1)
    unmeasured = dataclasses.replace(skewed(2, unit, at(9, 51), 1, -3_300.0), server_offset=None)
    assert ingest(world, older, unmeasured).rows == 2
    assert times() == [at(8, 56), at(9, 50)]


def test_entries_of_an_earlier_version_on_the_stream_have_no_clock(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    enqueue_batch(world.hosts["alpha"].pk, skewed(1, unit, at(9, 50), 1, -300.0), NOW)
    stream = redis_client.redis_client()
    [(_, fields)] = stream.xrange(SAMPLE_STREAM_KEY)
    stream.delete(SAMPLE_STREAM_KEY)
    stream.xadd(SAMPLE_STREAM_KEY, {name: value for name, value in fields.items() if name != b"clock"})
    assert drain_stream(stream, NOW).rows == 1
    assert times() == [at(9, 45)]
