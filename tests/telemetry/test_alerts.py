"""Test alerts from rollups, samples and reservations: begin, end, two signals, snooze, and stops of work."""

from __future__ import annotations

import datetime as dt
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.wording.alert_texts import alert_evidence
from scheduler.models import Gpu, Host, Unit, Workload
from telemetry.alerts import alert_rows, evaluate
from telemetry.alerts.evaluate import evaluate_alerts, purge_old_alerts
from telemetry.alerts.rules import write_rule
from telemetry.core.alerts.judgement import AlertState
from telemetry.core.alerts.kinds import ALERT_KINDS, THRESHOLD_FIELDS, AlertKind
from telemetry.core.rollup import UsageSums
from telemetry.models import Alert, HealthEvent, ReadingFault, SampleWatermark, SlowReading
from telemetry.rollups.storage import StoredUse, write_rollups
from tests.telemetry.rows import at, hold, reservation, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
START = at(9)
USES = {"busy": (60.0, 0.0, 0.0), "idle": (0.0, 60.0, 0.0), "empty": (0.0, 0.0, 60.0)}


@pytest.fixture(autouse=True)
def sampled_hosts(world: World) -> None:
    """Let all hosts have sent their samples, so that they have no alert about a gap."""
    SampleWatermark.objects.bulk_create(
        SampleWatermark(host=host, sampled_until=at(0, day=9)) for host in Host.objects.all()
    )


def use(
    unit: Unit,
    allocation: Any,
    use_of: str,
    minutes: int,
    since: dt.datetime = START,
    *,
    is_read: bool = True,
) -> None:
    """Store minute rollups in which the unit is busy, idle or empty.

    ``is_read`` is False for a unit without utilisation and SM activity, such as a slice of an A100.
    """
    busy, idle, empty = USES[use_of]
    utilisation = busy if is_read else None
    sums = UsageSums(60.0, 60.0, 6, utilisation, busy_seconds=busy, idle_seconds=idle, empty_seconds=empty)
    buckets = [since + timedelta(minutes=minute) for minute in range(minutes)]
    write_rollups(
        60, [StoredUse(bucket, unit.gpu.host_id, unit.pk, allocation.pk, sums) for bucket in buckets]
    )


def read(unit: Unit, minutes: int, since: dt.datetime = START, **readings: Any) -> None:
    """Store two samples a minute. A reading that is a list alternates between its values."""
    columns = ", ".join(readings)
    rows = [
        (
            unit.pk,
            since + timedelta(seconds=30 * number),
            *(
                value[number % len(value)] if isinstance(value, list) else value
                for value in readings.values()
            ),
        )
        for number in range(2 * minutes)
    ]
    with connection.cursor() as cursor:
        marks = ", ".join(["%s"] * (2 + len(readings)))
        cursor.executemany(f"INSERT INTO telemetry_sample (unit_id, ts, {columns}) VALUES ({marks})", rows)


def change_rule(world: World, kind: AlertKind, **changes: Any) -> None:
    defaults = {name: getattr(ALERT_KINDS[kind].defaults, name) for name in THRESHOLD_FIELDS}
    write_rule(world.shared, kind, defaults | changes)


def kinds_of_open_alerts() -> list[str]:
    return sorted(Alert.objects.filter(ended_at=None).values_list("kind", flat=True))


def idle_job(world: World, minutes: int = 40, **readings: Any) -> Workload:
    """Return a job whose GPU has a process that does nothing, from START on."""
    unit = units_of(world.hosts["alpha"])[0]
    work = workload(world, world.vision)
    use(unit, hold(work, unit, START), "idle", minutes)
    read(unit, minutes, **({"power_w": 70.0} | readings))
    return work


def test_a_job_that_is_idle_for_half_an_hour_has_one_alert_with_evidence(world: World) -> None:
    work = idle_job(world)
    assert evaluate_alerts(at(9, 20)).begun == 0
    assert evaluate_alerts(at(9, 33)).begun == 1
    assert evaluate_alerts(at(9, 34)).begun == 0
    alert = Alert.objects.get()
    assert (alert.kind, alert.state, alert.workload_id, alert.pool_id) == (
        "held_idle",
        "firing",
        work.pk,
        world.shared.pk,
    )
    assert alert.evidence == {"gpus": 1, "unused": 1, "model": "H100-80GB", "minutes": 30, "power_w": 70}
    assert alert.value == 100


@pytest.mark.parametrize(
    "readings",
    [{"power_w": [70.0, 300.0]}, {"pcie_rx_kib": 900_000, "pcie_tx_kib": 10_000}, {"power_w": None}],
)
def test_a_utilisation_of_zero_without_a_second_signal_is_no_alert(
    world: World, readings: dict[str, Any]
) -> None:
    idle_job(world, **readings)
    assert evaluate_alerts(at(9, 33)).begun == 0


def test_an_empty_job_is_empty_and_not_idle(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    use(unit, hold(workload(world, world.vision), unit, START), "empty", 40)
    assert evaluate_alerts(at(9, 15)).begun == 0
    evaluate_alerts(at(9, 18))
    evaluate_alerts(at(9, 35))
    assert kinds_of_open_alerts() == ["held_empty"]


@pytest.mark.parametrize(
    "readings, kinds",
    [({}, []), ({"pcie_rx_kib": 900_000, "pcie_tx_kib": 10_000}, []), ({"power_w": 70.0}, ["held_empty"])],
)
def test_no_process_alone_neither_begins_an_alert_nor_stops_work(
    world: World, readings: dict[str, Any], kinds: list[str]
) -> None:
    change_rule(world, AlertKind.HELD_EMPTY, stop_work=True, notice_minutes=5)
    unit, work = units_of(world.hosts["alpha"])[0], workload(world, world.vision)
    use(unit, hold(work, unit, START), "empty", 60, is_read=False)
    read(unit, 60, processes=0, **readings)
    for minute in (18, 30, 45):
        evaluate_alerts(at(9, minute))
    assert list(Alert.objects.values_list("kind", flat=True)) == kinds
    work.refresh_from_db()
    assert work.stop_requested == ("idle" if kinds else "")


def test_a_job_that_uses_two_of_eight_gpus_asked_for_too_many(world: World) -> None:
    work = workload(world, world.vision, units=8)
    for number, unit in enumerate(units_of(world.hosts["alpha"])):
        use(unit, hold(work, unit, START), "busy" if number < 2 else "empty", 70)
    assert evaluate_alerts(at(9, 40)).begun == 0
    evaluate_alerts(at(10, 3))
    alert = Alert.objects.get()
    assert (alert.kind, alert.value, alert.evidence["gpus"], alert.evidence["unused"]) == (
        "over_asked",
        75,
        8,
        6,
    )


@pytest.mark.parametrize("kind", ["notebook", "simulated", "queued"])
def test_notebooks_and_work_that_does_not_run_have_no_alert(world: World, kind: str) -> None:
    work = idle_job(world)
    changes = {
        "notebook": {"kind": "notebook"},
        "simulated": {"simulated": True},
        "queued": {"state": "stopping"},
    }
    Workload.objects.filter(pk=work.pk).update(**changes[kind])
    assert evaluate_alerts(at(9, 33)).begun == 0


def test_an_alert_ends_below_its_second_threshold_and_may_begin_again(world: World) -> None:
    work = idle_job(world, 32)
    unit = units_of(world.hosts["alpha"])[0]
    evaluate_alerts(at(9, 33))
    use(unit, work.allocations.get(), "busy", 3, at(9, 32))
    assert evaluate_alerts(at(9, 34)).ended == 0
    assert evaluate_alerts(at(9, 37)).ended == 1
    assert Alert.objects.get().ended_at == at(9, 37)
    use(unit, work.allocations.get(), "idle", 32, at(9, 35))
    read(unit, 40, at(9, 32), power_w=70.0)
    assert evaluate_alerts(at(10, 8)).begun == 1


def test_missing_samples_end_no_alert_and_the_end_of_the_work_does(world: World) -> None:
    work = idle_job(world, 32)
    evaluate_alerts(at(9, 33))
    assert evaluate_alerts(at(11)).ended == 0
    Workload.objects.filter(pk=work.pk).update(state="ended", ended_at=at(11))
    assert evaluate_alerts(at(11, 1)).ended == 1


def test_unused_work_is_warned_and_then_gets_the_notice_of_its_pool(world: World) -> None:
    change_rule(world, AlertKind.HELD_IDLE, stop_work=True, notice_minutes=10)
    work = idle_job(world, 60)
    evaluate_alerts(at(9, 33))
    assert Alert.objects.get().stop_at == at(9, 43)
    assert evaluate_alerts(at(9, 42)).stopped == 0
    assert evaluate_alerts(at(9, 44)).stopped == 1
    work.refresh_from_db()
    assert (work.state, work.stop_requested) == ("notice", "idle")
    assert Alert.objects.get().stopped_at == at(9, 44)
    assert evaluate_alerts(at(9, 45)).stopped == 0


def test_work_is_not_stopped_if_the_second_signal_is_gone_at_that_time(world: World) -> None:
    change_rule(world, AlertKind.HELD_IDLE, stop_work=True, notice_minutes=10)
    work = idle_job(world, 33)
    unit = units_of(world.hosts["alpha"])[0]
    use(unit, work.allocations.get(), "idle", 20, at(9, 33))
    read(unit, 20, at(9, 33), power_w=[70.0, 300.0])
    evaluate_alerts(at(9, 33))
    assert evaluate_alerts(at(9, 50)).stopped == 0
    work.refresh_from_db()
    assert work.state == "running"


@pytest.mark.parametrize(
    ("of_use", "readings"),
    [("idle", {"utilisation": 90.0}), ("idle", {"sm_active": 90.0}), ("empty", {"processes": 1})],
)
def test_work_that_became_busy_after_the_last_rollup_is_not_stopped(
    world: World, of_use: str, readings: dict[str, float]
) -> None:
    for kind in (AlertKind.HELD_IDLE, AlertKind.HELD_EMPTY):
        change_rule(world, kind, stop_work=True, notice_minutes=10)
    unit, work = units_of(world.hosts["alpha"])[0], workload(world, world.vision)
    use(unit, hold(work, unit, START), of_use, 60)
    read(unit, 48, power_w=70.0, utilisation=0.0, processes=1 if of_use == "idle" else 0)
    evaluate_alerts(at(9, 33))
    read(unit, 1, at(9, 49), power_w=300.0, **readings)
    assert evaluate_alerts(at(9, 50)).stopped == 0
    work.refresh_from_db()
    assert work.state == "running"


@pytest.mark.parametrize("change", [{"state": "snoozed", "stop_at": None}, {"stopped_at": at(9, 43)}])
def test_work_is_not_stopped_if_a_person_or_a_concurrent_run_was_faster(
    world: World, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_rule(world, AlertKind.HELD_IDLE, stop_work=True, notice_minutes=10)
    work = idle_job(world, 60)
    evaluate_alerts(at(9, 33))
    plan_stops = evaluate._plan_stops

    def be_faster(*given: Any) -> list[Alert]:
        due = plan_stops(*given)
        Alert.objects.update(**change)
        return due

    monkeypatch.setattr(evaluate, "_plan_stops", be_faster)
    assert evaluate_alerts(at(9, 44)).stopped == 0
    work.refresh_from_db()
    assert work.state == "running"


def test_no_pool_stops_work_unless_it_says_so_and_a_snooze_delays_it(world: World) -> None:
    work = idle_job(world, 120)
    evaluate_alerts(at(9, 33))
    assert Alert.objects.get().stop_at is None
    change_rule(world, AlertKind.HELD_IDLE, stop_work=True, notice_minutes=10)
    evaluate_alerts(at(9, 34))
    assert alert_rows.snooze_alert(Alert.objects.get(), until=at(10))
    assert evaluate_alerts(at(9, 50)).stopped == 0
    evaluate_alerts(at(10))
    assert Alert.objects.get().state == AlertState.FIRING
    assert Alert.objects.get().stop_at == at(10, 10)
    Workload.objects.filter(pk=work.pk).update(keep_until=at(10, 20))
    assert evaluate_alerts(at(10, 11)).stopped == 0
    change_rule(world, AlertKind.HELD_IDLE, stop_work=False)
    evaluate_alerts(at(10, 30))
    assert Alert.objects.get().stop_at is None


def test_hot_and_throttled_gpus_have_alerts_until_they_cool_down(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    read(unit, 15, temperature_c=93.0, throttle_reasons=0x40)
    assert evaluate_alerts(at(9, 2)).begun == 0
    evaluate_alerts(at(9, 14))
    assert kinds_of_open_alerts() == ["hot", "throttled"]
    assert Alert.objects.get(kind="hot").gpu_id == unit.gpu_id
    read(unit, 11, at(9, 15), temperature_c=85.0, throttle_reasons=0x04)
    evaluate_alerts(at(9, 25, 30))
    assert kinds_of_open_alerts() == ["hot"]  # 85 °C lies between the thresholds
    read(unit, 6, at(9, 26), temperature_c=60.0, throttle_reasons=0)
    evaluate_alerts(at(9, 31, 40))
    assert kinds_of_open_alerts() == []


def test_memory_errors_are_counted_once_from_events_and_counters(world: World) -> None:
    gpu = units_of(world.hosts["alpha"])[0].gpu
    assert evaluate_alerts(START).begun == 0
    events = {"host": gpu.host, "gpu": gpu, "source": "nvml", "received_at": START}
    HealthEvent.objects.create(event_id="a", code="ecc:uncorrectable", at=at(9, 1), **events)
    HealthEvent.objects.create(event_id="b", code="xid:13", at=at(9, 1), **events)
    for minute, value in ((0, 5), (1, 7)):
        SlowReading.objects.create(
            gpu=gpu, reading="ecc_uncorrected", source="dcgm", at=at(9, minute), value=value
        )
    evaluate_alerts(at(9, 2))
    assert Alert.objects.get().value == 2
    evaluate_alerts(at(9, 3, day=3))
    assert kinds_of_open_alerts() == []


def test_a_host_without_new_samples_and_one_with_a_wrong_clock_have_alerts(world: World) -> None:
    Host.objects.update(lease_state="alive")
    alpha, beta = world.hosts["alpha"], world.hosts["beta"]
    SampleWatermark.objects.filter(host=alpha).update(sampled_until=START)
    SampleWatermark.objects.filter(host=beta).update(sampled_until=at(9, 10))
    fault = {"day": START.date(), "source": "nvml", "reading": "ts", "kind": "clock_corrected", "count": 3}
    ReadingFault.objects.create(host=beta, last_at=at(9, 10), last_value=-45.0, **fault)
    evaluate_alerts(at(9, 11))
    assert {(alert.kind, alert.host_id, alert.value) for alert in Alert.objects.all()} == {
        ("telemetry_gap", alpha.pk, 11.0),
        ("clock_skew", beta.pk, 45.0),
    }
    Host.objects.filter(pk=alpha.pk).update(lease_state="silent")
    SampleWatermark.objects.filter(host=beta).update(sampled_until=at(9, 45))
    evaluate_alerts(at(9, 46))
    assert kinds_of_open_alerts() == []


@pytest.mark.parametrize("has_watermark", [False, True])
def test_a_host_that_never_sent_a_sample_has_an_alert_since_it_reported_its_gpus(
    world: World, has_watermark: bool
) -> None:
    alpha, beta = world.hosts["alpha"], world.hosts["beta"]
    Gpu.objects.filter(host=beta).update(retired_at=START)  # a host without GPUs sends no samples
    marks = SampleWatermark.objects.filter(host__in=[alpha, beta])
    if has_watermark:
        marks.update(sampled_until=None)
    else:
        marks.delete()
    assert evaluate_alerts(at(9, 9)).begun == 0
    evaluate_alerts(at(9, 11))
    alert = Alert.objects.get()
    assert (alert.kind, alert.host_id, alert.value) == ("telemetry_gap", alpha.pk, 11.0)
    text = alert_evidence(alert.kind, alert.value, alert.evidence)
    assert text == "It has sent no sample since it reported its GPUs, 11 minutes ago."
    marks.delete()
    SampleWatermark.objects.create(host=alpha, sampled_until=at(9, 12))
    assert evaluate_alerts(at(9, 13)).ended == 1


def test_a_reservation_that_nobody_uses_has_an_alert_until_work_comes(world: World) -> None:
    units = units_of(world.hosts["alpha"])[:2]
    row = reservation(world, world.vision, units, START, at(12))
    assert evaluate_alerts(at(9, 10)).begun == 0
    evaluate_alerts(at(9, 20))
    alert = Alert.objects.get()
    assert (alert.kind, alert.reservation_id, alert.evidence["gpus"]) == ("reserved_unused", row.pk, 2)
    workload(world, world.vision, reservation=row, state="queued")
    assert evaluate_alerts(at(9, 21)).ended == 1


def test_the_time_without_use_of_a_reservation_begins_with_the_end_of_its_last_work(world: World) -> None:
    units = units_of(world.hosts["alpha"])[:2]
    row = reservation(world, world.vision, units, START, at(12))
    for minute in (5, 10):
        workload(world, world.vision, reservation=row, state="ended", ended_at=at(9, minute))
    assert evaluate_alerts(at(9, 24)).begun == 0
    assert evaluate_alerts(at(9, 25)).begun == 1


def test_a_pool_in_which_work_waits_longer_than_the_limit_has_an_alert(world: World) -> None:
    change_rule(world, AlertKind.LONG_WAIT, begin=120, end=60)
    waiting = workload(world, world.vision, state="queued", queued_at=START)
    workload(world, world.vision, state="queued", queued_at=at(1), reason_code="dependency")
    assert evaluate_alerts(at(10, 59)).begun == 0
    evaluate_alerts(at(11))
    assert (Alert.objects.get().kind, Alert.objects.get().value) == ("long_wait", 120)
    Workload.objects.filter(pk=waiting.pk).update(state="running")
    assert evaluate_alerts(at(11, 1)).ended == 1


def test_a_disabled_rule_has_no_alert(world: World) -> None:
    change_rule(world, AlertKind.HELD_IDLE, enabled=False)
    idle_job(world)
    assert evaluate_alerts(at(9, 33)).begun == 0


def test_the_number_of_queries_does_not_grow_with_the_number_of_alerts(world: World) -> None:
    def look(*units: Unit) -> int:
        for unit in units:
            use(unit, hold(workload(world, world.vision), unit, START), "idle", 40)
            read(unit, 40, power_w=70.0, temperature_c=95.0, throttle_reasons=0x08)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert evaluate_alerts(at(9, 38)).begun == 3 * len(units)
        return len(queries)

    units = units_of(world.hosts["alpha"])
    one = look(units[0])
    assert look(*units[1:6]) == one <= 25


def test_old_alerts_are_deleted_after_their_end(world: World) -> None:
    change_rule(world, AlertKind.LONG_WAIT, begin=120, end=60)
    waiting = workload(world, world.vision, state="queued", queued_at=START)
    evaluate_alerts(at(11))
    assert purge_old_alerts(at(11) + timedelta(days=4_000)) == 0
    Workload.objects.filter(pk=waiting.pk).update(state="running")
    evaluate_alerts(at(12))
    assert purge_old_alerts(at(12) + timedelta(days=1)) == 0
    assert purge_old_alerts(at(12) + timedelta(days=4_000)) == 1
