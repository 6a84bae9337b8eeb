"""Test the state of a host's samples by hour: complete, waiting for the spool, or lost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler.models import Host
from telemetry.ingest import redis_client
from telemetry.ingest.agent_api import committed_sequence, enqueue_batch
from telemetry.ingest.samples import IngestResult, drain_stream
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.ingest.watermarks import skip_missing_batches
from telemetry.models import HOST_HOUR_TRANSITIONS, HostHour, Sample, SampleGap
from telemetry.rollups.host_hours import hosts_by_state, record_ended_hours
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.telemetry.rows import at, batch, hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def empty_stream() -> Iterator[None]:
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)
    yield
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)


@pytest.fixture
def held(world: World) -> World:
    """Return a world in which one GPU of alpha is held from 09:00 on."""
    hold(workload(world, world.vision), units_of(world.hosts["alpha"])[0], at(9))
    return world


def ingest(world: World, sequences: dict[int, dt.datetime], now: dt.datetime) -> IngestResult:
    """Store one batch of six samples, ten seconds apart, for each sequence number and start."""
    unit = units_of(world.hosts["alpha"])[0]
    for sequence, start in sequences.items():
        enqueue_batch(world.hosts["alpha"].pk, batch(sequence, unit, start, 6), now)
    return drain_stream(redis_client.redis_client(), now)


def states() -> list[tuple[dt.datetime, str, float]]:
    return list(HostHour.objects.order_by("hour").values_list("hour", "state", "lost_seconds"))


def gaps() -> list[tuple[Any, ...]]:
    rows = SampleGap.objects.order_by("start", "first_sequence")
    return list(rows.values_list("cause", "first_sequence", "last_sequence", "start", "end"))


def test_only_hours_in_which_a_unit_was_held_have_a_state(held: World) -> None:
    record_ended_hours(at(11, 5))
    assert set(HostHour.objects.values_list("host__name", "hour")) == {("alpha", at(9)), ("alpha", at(10))}


def test_the_simulated_past_has_no_states(world: World) -> None:
    work = workload(world, world.vision, simulated=True)
    hold(work, units_of(world.hosts["alpha"])[0], at(9), at(10), end_code="finished")
    record_ended_hours(at(11, 5))
    assert states() == []


def test_an_hour_is_complete_once_batches_up_to_its_end_are_stored(held: World) -> None:
    ingest(held, {1: at(9, 58)}, at(9, 59))
    record_ended_hours(at(10, 1))
    assert states() == [(at(9), "waiting", 0)]
    ingest(held, {2: at(9, 59, 5)}, at(10, 2))
    assert states() == [(at(9), "waiting", 0)]
    ingest(held, {3: at(10, 0, 5)}, at(10, 3))
    assert states() == [(at(9), "complete", 0)]


def test_an_hour_waits_while_an_earlier_batch_is_missing(held: World) -> None:
    ingest(held, {1: at(9, 10), 3: at(10, 0, 5)}, at(10, 1))
    record_ended_hours(at(10, 2))
    assert states() == [(at(9), "waiting", 0)]
    ingest(held, {2: at(9, 50)}, at(10, 3))
    assert states() == [(at(9), "complete", 0)]


def test_a_skipped_batch_makes_its_hours_lost_and_counts_the_seconds(held: World, root: Path) -> None:
    ingest(held, {1: at(9, 0), 4: at(10, 10)}, at(10, 11))
    record_ended_hours(at(11, 0))
    ingest(held, {5: at(11, 5)}, at(11, 6))
    # The last sample before the gap is of 09:00:50, the first one after it of 10:10:00.
    assert gaps() == [("skipped", 2, 3, at(9, 0, 50), at(10, 10))]
    assert states() == [(at(9), "lost", 3550), (at(10), "lost", 600)]
    record_ended_hours(at(12, 1))
    text = (root / "docs" / "telemetry.md").read_text()
    table = text.partition("<!-- host-hours")[2].partition("<!-- /host-hours")[0]
    assert [line for line in table.splitlines() if line.startswith("| ")][1:] == [
        f"| {hour:%H:%M} | `{state}` | {lost:.0f} |" for hour, state, lost in states()
    ]
    assert hosts_by_state(at(9), at(11)) == {
        "waiting": [],
        "lost": [{"host": "alpha", "hours": 2, "lost_seconds": 4150}],
    }


def test_a_batch_is_skipped_even_if_nothing_arrives_any_more(held: World) -> None:
    ingest(held, {1: at(9, 0), 3: at(10, 5)}, at(10, 6))
    record_ended_hours(at(10, 7))
    skip_missing_batches(at(10, 15))
    assert committed_sequence(held.hosts["alpha"].pk) == 1
    skip_missing_batches(at(10, 17))
    assert committed_sequence(held.hosts["alpha"].pk) == 3
    assert states() == [(at(9), "lost", 3550)]


def test_a_skipped_batch_that_arrives_after_all_is_stored_and_its_gap_closed(held: World) -> None:
    ingest(held, {1: at(9, 58), 3: at(10, 5)}, at(10, 6))
    record_ended_hours(at(10, 7))
    skip_missing_batches(at(10, 17))
    assert states() == [(at(9), "lost", 70)]
    samples = Sample.objects.count()
    done = ingest(held, {2: at(9, 59)}, at(10, 20))
    assert (done.batches, done.doubled) == (1, 0)
    assert Sample.objects.count() == samples + 6
    assert gaps() == []
    assert states() == [(at(9), "complete", 0)]
    assert ingest(held, {2: at(9, 59)}, at(10, 21)).doubled == 1


def test_a_batch_from_the_middle_of_a_gap_divides_the_gap(held: World) -> None:
    ingest(held, {1: at(9, 0), 5: at(9, 40)}, at(9, 41))
    skip_missing_batches(at(9, 55))
    ingest(held, {3: at(9, 20)}, at(9, 56))
    assert gaps() == [
        ("skipped", 2, 2, at(9, 0, 50), at(9, 20)),
        ("skipped", 4, 4, at(9, 20, 50), at(9, 40)),
    ]


def test_samples_that_an_earlier_installation_of_the_agent_spooled_are_lost(held: World) -> None:
    alpha = Host.objects.filter(pk=held.hosts["alpha"].pk)
    alpha.update(agent_instance="first")
    ingest(held, {1: at(9, 0)}, at(9, 2))
    alpha.update(agent_instance="second")
    ingest(held, {2: at(10, 10)}, at(10, 11))
    assert gaps() == [("reinstalled", None, None, at(9, 0, 50), at(10, 10))]
    record_ended_hours(at(10, 30))
    assert states() == [(at(9), "lost", 3550)]


def test_a_reinstalled_agent_without_a_gap_between_samples_loses_nothing(held: World) -> None:
    alpha = Host.objects.filter(pk=held.hosts["alpha"].pk)
    alpha.update(agent_instance="first")
    ingest(held, {1: at(9, 0)}, at(9, 2))
    alpha.update(agent_instance="second")
    ingest(held, {2: at(9, 1, 10)}, at(9, 3))
    assert gaps() == []


def test_samples_that_a_removed_host_still_owed_are_lost(held: World) -> None:
    ingest(held, {1: at(9, 30)}, at(9, 31))
    Host.objects.filter(pk=held.hosts["alpha"].pk).update(removed_at=at(10, 30))
    for now in (at(10, 31), at(11, 1), at(11, 2)):
        record_ended_hours(now)
    assert states()[:2] == [(at(9), "lost", 1750), (at(10), "lost", 1800)]
    assert len(gaps()) == 1


def test_every_change_of_a_state_is_in_the_table_of_transitions(held: World) -> None:
    steps: Sequence[tuple[dict[int, dt.datetime], dt.datetime]] = (
        ({1: at(9, 58)}, at(10, 0, 30)),
        ({3: at(10, 5)}, at(10, 6)),
        ({4: at(11, 1)}, at(11, 2)),
        ({2: at(9, 59)}, at(11, 3)),
        ({5: at(12, 1)}, at(12, 2)),
    )
    before: dict[dt.datetime, str] = {}
    for batches, now in steps:
        ingest(held, batches, now)
        record_ended_hours(now)
        for hour, state, _ in states():
            old = before.get(hour, state)
            assert state == old or state in HOST_HOUR_TRANSITIONS[old], (hour, old, state)
            before[hour] = state
    assert before == {at(9): "complete", at(10): "complete", at(11): "complete"}


def test_rolling_up_records_the_hours_that_have_ended(held: World) -> None:
    roll_up_due_buckets(at(10, 1) + timedelta(seconds=1))
    assert states() == [(at(9), "waiting", 0)]
