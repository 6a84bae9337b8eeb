"""Test periodic tasks that run at the same time, and a charge that is written while a month is closed.

The races of charging and of draining the sample stream run with their guard (the claim, the batch rows), and
again without it to show that the guard is needed.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import Sum

from portal.services.fleet import alerts as alert_services
from portal.services.fleet import sample_retention
from portal.services.work import workload_changes
from scheduler.core.rejection import OperationRejected
from scheduler.models import Workload
from telemetry.alerts import rules
from telemetry.capacity import studies
from telemetry.core.alerts.kinds import ALERT_KINDS, AlertKind
from telemetry.ingest import agent_api, redis_client, samples
from telemetry.ingest.samples import drain_stream
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.models import (
    Alert,
    AlertRule,
    CapacityStudy,
    Charge,
    ChargedUntil,
    Retention,
    Sample,
    Statement,
    StatementLine,
)
from telemetry.money import charges, statements
from telemetry.money.charges import charge_all_gpus
from tests.concurrency.conftest import GUARDED, UNGUARDED, Meeting, race
from tests.concurrency.conftest import world as committed_world
from tests.telemetry.rows import alert_of, at, batch, cost_centre, hold, pool_cost_centre, price, workload
from tests.waiting import wait_until
from tests.world import A100, H100, World, units_of

__all__ = ["committed_world"]
MARCH = dt.date(2026, 3, 1)
AFTER = dt.datetime(2026, 4, 1, 2, 0, tzinfo=dt.UTC)


@pytest.fixture
def rates(committed_world: World) -> World:
    for model in (H100, A100):
        price(model, "2.40", since=at(0, day=1))
    for each in committed_world.teams:
        cost_centre(each, "CC", at(0, day=1))
    pool_cost_centre(committed_world.static, "CC", at(0, day=1))
    return committed_world


def make_racers_meet_after(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, patience: float = UNGUARDED
) -> None:
    """Make each of two racing threads wait for the other after its first call of the function."""
    meeting, original = Meeting(2, patience), getattr(module, name)
    seen_threads: set[int] = set()

    def wait_after(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        if threading.get_ident() not in seen_threads:
            seen_threads.add(threading.get_ident())
            meeting.wait()
        return answer

    monkeypatch.setattr(module, name, wait_after)


def most_slot_seconds_of_a_gpu() -> int:
    sums = Charge.objects.values_list("gpu").annotate(total=Sum("slot_seconds"))
    return int(max(total for _, total in sums))


def connections_in_use() -> int:
    """Return the connections of the pool that threads hold. Threads of earlier tests may hold some."""
    connection.ensure_connection()
    pool = connection.pool.get_stats()  # type: ignore[attr-defined]
    return int(pool["pool_size"] - pool["pool_available"])


def test_two_concurrent_charging_ticks_charge_each_second_once(
    rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(workload(rates, rates.vision), units_of(rates.hosts["alpha"])[0], at(9), at(11), end_code="finished")
    make_racers_meet_after(monkeypatch, charges, "load_charging_inputs")
    assert [
        each for each in race([lambda: charge_all_gpus(at(12, 5))] * 2) if isinstance(each, Exception)
    ] == []
    assert most_slot_seconds_of_a_gpu() == 840 * 3 * 3600
    assert ChargedUntil.objects.filter(until=at(12)).count() == 28


def test_without_the_claim_two_charging_ticks_charge_each_second_twice(
    rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_racers_meet_after(monkeypatch, charges, "load_charging_inputs")
    claim: Callable[..., list[int]] = charges._claim_spans

    def claim_all(stretches: Any) -> list[int]:
        claim(stretches)
        return [gpu for gpu, _, _ in stretches]

    monkeypatch.setattr(charges, "_claim_spans", claim_all)
    race([lambda: charge_all_gpus(at(12, 5))] * 2)
    assert most_slot_seconds_of_a_gpu() == 2 * 840 * 3 * 3600


def test_a_thread_prices_the_next_gpus_while_lines_are_written(
    rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[int] = []
    original = charges.load_charging_inputs

    def load(*args: Any) -> Any:
        readers.append(threading.get_ident())
        return original(*args)

    monkeypatch.setattr(charges, "load_charging_inputs", load)
    monkeypatch.setattr(charges, "GPUS_PER_TRANSACTION", 10)
    charge_all_gpus(at(12, 5))
    assert len(set(readers)) == 1 and threading.get_ident() not in readers
    assert most_slot_seconds_of_a_gpu() == 840 * 3 * 3600
    assert ChargedUntil.objects.filter(until=at(12)).count() == 28


def test_an_error_of_the_thread_is_reported_and_the_next_run_charges_the_rest(
    rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, in_use = charges.load_charging_inputs, connections_in_use()
    columns = iter(["1", "no_such_column"])

    def fail_in_the_second_block(*args: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {next(columns)}")
        return original(*args)

    with monkeypatch.context() as patched:
        patched.setattr(charges, "load_charging_inputs", fail_in_the_second_block)
        patched.setattr(charges, "GPUS_PER_TRANSACTION", 10)
        with pytest.raises(DatabaseError, match="no_such_column"):
            charge_all_gpus(at(12, 5))
    assert not [each for each in threading.enumerate() if each.name.startswith("charging")]
    # The pool also counts a connection that it opens or resets.
    wait_until(lambda: connections_in_use() <= in_use)
    assert ChargedUntil.objects.filter(until=at(12)).count() == 10
    charge_all_gpus(at(12, 5))
    assert most_slot_seconds_of_a_gpu() == 840 * 3 * 3600
    assert ChargedUntil.objects.filter(until=at(12)).count() == 28


def test_an_error_while_lines_are_written_ends_the_thread_and_writes_nothing(
    rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> int:
        raise DatabaseError("no room")

    monkeypatch.setattr(charges, "write_charges", fail)
    monkeypatch.setattr(charges, "GPUS_PER_TRANSACTION", 10)
    with pytest.raises(DatabaseError, match="no room"):
        charge_all_gpus(at(12, 5))
    assert not [each for each in threading.enumerate() if each.name.startswith("charging")]
    assert not Charge.objects.exists() and not ChargedUntil.objects.filter(until=at(12)).exists()


@pytest.fixture
def stream(committed_world: World) -> Iterator[World]:
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)
    for sequence in (1, 2, 3):
        start = at(9) + dt.timedelta(minutes=sequence)
        sample_batch = batch(sequence, units_of(committed_world.hosts["alpha"])[0], start, 6)
        agent_api.enqueue_batch(committed_world.hosts["alpha"].pk, sample_batch, at(10))
    yield committed_world
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)


def test_two_concurrent_drains_store_each_batch_once(stream: World, monkeypatch: pytest.MonkeyPatch) -> None:
    make_racers_meet_after(monkeypatch, samples, "load_units")
    done = race([lambda: drain_stream(redis_client.redis_client(), at(10))] * 2)
    assert [each for each in done if isinstance(each, Exception)] == []
    assert Sample.objects.count() == 18
    assert agent_api.committed_sequence(stream.hosts["alpha"].pk) == 3


def test_without_the_batch_rows_two_drains_store_each_batch_twice(
    stream: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_racers_meet_after(monkeypatch, samples, "load_units")
    monkeypatch.setattr(samples, "insert_new_batches", lambda batches: list(batches))
    race([lambda: drain_stream(redis_client.redis_client(), at(10))] * 2)
    assert Sample.objects.count() == 36


def test_two_concurrent_changes_of_an_alert_rule_are_both_kept(
    rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_racers_meet_after(monkeypatch, alert_services.rules, "rules_in_force", GUARDED)

    def change(**given: Any) -> Callable[[], Any]:
        return lambda: alert_services.set_alert_rule(
            actor=rates.operator, pool=rates.shared, kind="held_idle", now=at(10), **given
        )

    done = race([change(begin=99), change(end=80)])
    assert [each for each in done if isinstance(each, Exception)] == []
    assert AlertRule.objects.values_list("begin", "end").get() == (99, 80)


def claims_at_once(world: World, monkeypatch: pytest.MonkeyPatch, patience: float) -> int:
    """Let two tasks claim a study at once, of two that wait. Return the number of tasks that have one."""
    for _ in range(2):
        studies.create_study(world.shared, "", 3_600, world.operator, at(9))
    make_racers_meet_after(monkeypatch, studies, "_next_waiting_study", patience)
    done = race([lambda: studies._claim(at(10))] * 2)
    assert [each for each in done if isinstance(each, Exception)] == []
    return sum(each is not None for each in done)


def test_two_tasks_that_claim_at_once_run_one_study(rates: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert claims_at_once(rates, monkeypatch, GUARDED) == 1
    assert CapacityStudy.objects.filter(state="running").count() == 1


def test_without_the_lock_two_tasks_would_run_a_study_each(
    rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "lock_study_claims", lambda: None)
    assert claims_at_once(rates, monkeypatch, UNGUARDED) == 2


def test_two_concurrent_postponements_of_a_stop_count_one_by_one(
    rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.write_rule(
        rates.shared,
        AlertKind.HELD_IDLE,
        asdict(ALERT_KINDS[AlertKind.HELD_IDLE].defaults) | {"stop_work": True, "postpone_times": 1},
    )
    job = workload(rates, rates.vision)
    alert_of(job, stop_at=at(10))
    make_racers_meet_after(monkeypatch, workload_changes, "planned_stops", GUARDED)

    def postpone() -> Any:
        mine = Workload.objects.select_related("pool", "project", "owner").get(pk=job.pk)
        return workload_changes.keep_workload(
            actor=rates.vision.member, workload=mine, seconds=600, now=at(9, 50)
        )

    refused = [each for each in race([postpone] * 2) if isinstance(each, Exception)]
    assert [type(each) for each in refused] == [OperationRejected]
    assert Alert.objects.get().postponed == 1


def test_two_concurrent_changes_of_the_retention_are_both_kept(
    rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_racers_meet_after(monkeypatch, sample_retention.locks, "lock_retention", GUARDED)

    def change(**given: Any) -> Callable[[], Any]:
        return lambda: sample_retention.set_sample_retention(actor=rates.operator, now=at(10), **given)

    done = race([change(minute_days=60), change(hour_days=400)])
    assert [each for each in done if isinstance(each, Exception)] == []
    assert Retention.objects.values_list("minute_days", "hour_days").get() == (60, 400)


def charge_written_late(inserted: threading.Event) -> Callable[[], str]:
    """Return a transaction that writes one more line of March and commits about 1 s later."""

    def write() -> str:
        with transaction.atomic():
            line = Charge.objects.filter(month=MARCH, bucket="unallocated").first()
            assert line is not None
            line.pk = None
            line.save(force_insert=True)
            inserted.set()
            # The close starts during this wait. The guard makes the close wait for this commit.
            threading.Event().wait(1.0)
        return "committed"

    return write


def close(rates: World, inserted: threading.Event) -> Callable[[], Statement]:
    def run() -> Statement:
        inserted.wait(5)
        return statements.close_month(month=MARCH, closed_by=rates.finance, now=AFTER)

    return run


def test_a_month_close_waits_for_uncommitted_charges_and_includes_them(rates: World) -> None:
    charge_all_gpus(AFTER)
    inserted = threading.Event()
    written, closed = race([charge_written_late(inserted), close(rates, inserted)])
    assert written == "committed"
    assert isinstance(closed, OperationRejected)  # the close read the late line, which charges time twice
    assert Statement.objects.get(month=MARCH).state == "open"


def test_a_charge_after_the_month_close_is_rejected(rates: World) -> None:
    charge_all_gpus(AFTER)
    statement = statements.close_month(month=MARCH, closed_by=rates.finance, now=AFTER)
    (late,) = race([charge_written_late(threading.Event())])
    assert isinstance(late, DatabaseError)
    assert StatementLine.objects.filter(statement=statement).exists()
