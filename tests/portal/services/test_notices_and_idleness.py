"""Test that each event creates one notification, and that idle notebooks are warned and stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from portal.models import Notification, Submission, User
from portal.notices import delivery
from portal.services.approvals import decisions, submissions
from portal.services.calendar import reservations
from portal.services.fleet import hosts
from portal.services.work import launch, workload_changes
from portal.sweeps import idle_notebooks
from portal.sweeps.idle_notebooks import IdleVerdict, NotebookActivity
from portal.wording import reason_texts
from portal.wording.notices import notice_texts
from scheduler import services as scheduling
from scheduler.models import Allocation, Decision, Host, HostStateChange, Reservation, Run, Workload
from scheduler.state import nudge
from scheduler.sweeps import silent_hosts
from telemetry.health.rules import apply_rules_to_events
from telemetry.models import Budget, BudgetAlert, HealthEvent, HealthRule
from tests.fakes import FakeAgent
from tests.world import H100, World, units_of

MINUTE = timedelta(minutes=1)
LIMIT = timedelta(hours=1)


def kinds(user: Any) -> list[str]:
    return list(Notification.objects.filter(user=user).order_by("pk").values_list("kind", flat=True))


def job(world: World, **changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "name": "train",
        "command": "x",
        "units": 1,
        "models": [H100],
        "max_runtime_seconds": 3600,
    }
    fields |= {"actor": world.vision.member, "project": world.vision.project, "pool": world.shared}
    return launch.submit_job(now=world.now, **(fields | changes))


def run_of(workload: Workload, world: World, **fields: Any) -> Run:
    values: dict[str, Any] = {
        "attempt": 1,
        "generation": workload.pk,
        "placed_at": world.now,
        "state": "running",
    }
    return Run.objects.create(workload=workload, host=world.hosts["alpha"], **(values | fields))


@pytest.mark.django_db
def test_a_start_a_resume_and_an_end_are_notified_once(world: World) -> None:
    workload = job(world)
    run_of(workload, world, running_at=world.now)
    delivery.write_notices(world.now + MINUTE)
    run_of(workload, world, attempt=2, generation=10_000, running_at=world.now + 2 * MINUTE)
    Workload.objects.filter(pk=workload.pk).update(ended_at=world.now + 3 * MINUTE, outcome="finished")
    Workload.objects.filter(pk=workload.pk, state="queued").update(state="ended")
    delivery.write_notices(world.now + 4 * MINUTE)
    for later in range(5, 8):
        assert delivery.write_notices(world.now + later * MINUTE) == 0
    assert kinds(world.vision.member) == ["started", "resumed", "ended"]
    assert kinds(world.vision.members[1]) == []


@pytest.mark.django_db
def test_an_event_during_an_outage_of_the_sweep_is_notified_later(world: World) -> None:
    delivery.write_notices(world.now)
    workload = job(world)
    run_of(workload, world, running_at=world.now + MINUTE)
    delivery.write_notices(world.now + timedelta(hours=30))
    assert kinds(world.vision.member) == ["started"]


@pytest.mark.django_db
def test_simulated_history_creates_no_notifications(world: World) -> None:
    workload = job(world)
    Workload.objects.filter(pk=workload.pk).update(simulated=True)
    run_of(workload, world, running_at=world.now)
    assert delivery.write_notices(world.now + MINUTE) == 0


@pytest.mark.django_db
def test_the_notice_of_a_preempted_notebook_promises_no_refund(world: World) -> None:
    workload = job(world)
    Workload.objects.filter(pk=workload.pk).update(kind="notebook")
    Decision.objects.create(
        workload=workload, kind="evicted", code="evicted_for_guarantee", numbers={}, epoch=1, at=world.now
    )
    delivery.write_notices(world.now + MINUTE)
    notice = Notification.objects.get(user=world.vision.member, kind="preemption_notice")
    assert "charged" not in notice_texts.notice_sentence(notice.kind, notice.numbers, world.vision.member)


@pytest.mark.django_db
def test_the_owner_is_notified_of_an_eviction_with_its_reason(world: World) -> None:
    workload = job(world)
    numbers = {"team": world.language.team.pk, "workload": 0}
    Decision.objects.create(
        workload=workload,
        kind="evicted",
        code="evicted_for_guarantee",
        numbers=numbers,
        epoch=1,
        at=world.now,
    )
    delivery.write_notices(world.now + MINUTE)
    assert kinds(world.vision.member) == ["preemption_notice"]
    notice = Notification.objects.get(user=world.vision.member, kind="preemption_notice")
    words = notice_texts.notice_sentence(notice.kind, notice.numbers, world.vision.member)
    assert words.endswith(
        "Its work since its last checkpoint is not charged, but at most the last 60 minutes before its stop."
    )
    # A user may know which teams share the pool, but not which work these teams run.
    other = job(world, actor=world.language.member, project=world.language.project)
    sentence = reason_texts.reason_sentence(
        "evicted_for_guarantee", numbers | {"workload": other.pk}, workload.owner
    )
    assert "They are guaranteed to Language, which needs them for its work" in sentence
    assert "guaranteed to another team, which" in reason_texts.reason_sentence(
        "evicted_for_guarantee", numbers, None
    )


@pytest.mark.django_db
def test_operators_are_notified_of_waiting_requests_and_authors_of_decisions(world: World) -> None:
    submission = submissions.request_quota_change(
        actor=world.vision.lead,
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=9,
        now=world.now,
    )
    delivery.write_notices(world.now + MINUTE)
    assert kinds(world.operator) == ["approval_wanted"]
    changes = {"guaranteed_gpus": 10}
    decisions.approve_submission(
        actor=world.operator, submission=submission, changes=changes, now=world.now + MINUTE
    )
    declined = submissions.request_membership(
        actor=world.stranger, team=world.vision.team, now=world.now + MINUTE
    )
    decisions.decline_submission(
        actor=world.vision.lead, submission=declined, comment="full", now=world.now + 2 * MINUTE
    )
    delivery.write_notices(world.now + 3 * MINUTE)
    assert kinds(world.vision.lead) == ["approved_changed"]
    assert kinds(world.stranger) == ["declined"]


@pytest.mark.django_db
def test_a_reservation_is_announced_fifteen_minutes_before_its_start(world: World) -> None:
    start = world.now + timedelta(hours=1)
    reservation = reservations.request_reservation(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        name="review",
        units=1,
        models=[H100],
        start=start,
        end=start + timedelta(hours=1),
        now=world.now,
    )
    assert not isinstance(reservation, Submission)
    delivery.write_notices(world.now + 30 * MINUTE)
    assert kinds(world.vision.member) == []
    delivery.write_notices(world.now + 46 * MINUTE)
    delivery.write_notices(world.now + 47 * MINUTE)
    assert kinds(world.vision.member) == ["reservation_soon"]


@pytest.mark.django_db
def test_an_expected_start_that_moves_a_lot_is_notified(world: World) -> None:
    workload = job(world)
    for expected, notices in ((60, 0), (70, 0), (180, 1), (185, 1), (60, 2)):
        Workload.objects.filter(pk=workload.pk).update(expected_start=world.now + expected * MINUTE)
        delivery.write_notices(world.now)
        assert len(kinds(world.vision.member)) == notices, expected


@pytest.mark.django_db
def test_operators_and_owners_are_notified_of_a_silent_host(world: World) -> None:
    run_of(job(world), world)
    alpha = world.hosts["alpha"]
    HostStateChange.objects.create(
        host=alpha, lease_state="silent", admin_state="in_service", repair_state="well", at=world.now
    )
    delivery.write_notices(world.now + MINUTE)
    assert kinds(world.operator) == kinds(world.vision.member) == ["host_trouble"]
    assert kinds(world.language.member) == []


def disk_notices_of(world: World) -> Callable[..., list[str]]:
    """Return a function that reports the disk of alpha and returns the notices of the operator."""
    agent = FakeAgent.of(world.hosts["alpha"])

    def disk_notices_at(number: float, *, full: bool) -> list[str]:
        """Sync the agent, deliver notices, and return every disk notice of the operator so far."""
        at = world.now + number * MINUTE
        agent.inventory = replace(agent.inventory, disk_full=full)
        agent.sync(at)
        delivery.write_notices(at)
        notices = Notification.objects.filter(user=world.operator, kind="disk_is_full").order_by("pk")
        return [notice_texts.notice_sentence(row.kind, row.numbers) for row in notices]

    return disk_notices_at


@pytest.mark.django_db
def test_a_disk_that_stays_full_is_notified_once_and_again_only_after_it_had_space(world: World) -> None:
    disk_notices_at = disk_notices_of(world)
    assert disk_notices_at(0, full=True) == disk_notices_at(9.9, full=True) == []
    first = disk_notices_at(10.1, full=True)
    assert (
        len(first) == 1
        and first[0].startswith("alpha has started nothing new since ")
        and "quota" in first[0]
    )
    assert disk_notices_at(60, full=True) == first
    assert disk_notices_at(61, full=False) == disk_notices_at(62, full=True) == first
    assert disk_notices_at(100, full=True)[:1] == first and len(disk_notices_at(101, full=True)) == 2, (
        "the sweep did not run for half an hour"
    )
    assert kinds(world.vision.member) == []


@pytest.mark.long
@pytest.mark.django_db
def test_a_disk_that_is_full_again_for_a_short_time_is_not_notified(world: World) -> None:
    disk_notices_at = disk_notices_of(world)
    disk_notices_at(0, full=True)
    first = disk_notices_at(11, full=True)
    assert len(first) == 1
    assert (
        disk_notices_at(61, full=False)
        == disk_notices_at(62, full=True)
        == disk_notices_at(71, full=True)
        == first
    )
    assert len(disk_notices_at(73, full=True)) == 2
    assert (
        disk_notices_at(102, full=False)
        == disk_notices_at(103, full=True)
        == disk_notices_at(108, full=False)
        == disk_notices_at(120, full=False)
    )


@pytest.mark.django_db
def test_a_host_attested_off_is_reported_as_off_and_as_silent_once(world: World) -> None:
    alpha, other = world.hosts["alpha"], User.objects.create(username="second", operator=True)
    Host.objects.filter(pk=alpha.pk).update(last_sync_at=world.now - 30 * MINUTE)
    silent_hosts.sweep_silent_hosts(world.now)
    assert Host.objects.get(pk=alpha.pk).lease_state == "silent"
    delivery.write_notices(world.now + MINUTE)
    hosts.attest_off(actor=world.operator, host=alpha, why="psu burnt", now=world.now + 2 * MINUTE)
    hosts.cordon_host(actor=world.operator, host=alpha, why="the psu", now=world.now + 3 * MINUTE)
    delivery.write_notices(world.now + 4 * MINUTE)
    notices = [
        notice_texts.notice_sentence(row.kind, row.numbers)
        for row in Notification.objects.filter(user=other, kind="host_trouble").order_by("pk")
    ]
    assert (
        notices[-1]
        == "alpha counts as powered off since 2 Mar 2026 09:02 (confirmed by operator: psu burnt)."
    )
    assert len(notices) == 2 and "fell silent" in notices[0]
    assert kinds(world.operator) == ["host_trouble"]  # no notice of the own confirmation


@pytest.mark.django_db
def test_the_operator_who_attested_a_host_off_is_named_to_operators_only(world: World) -> None:
    """Members see "an operator" instead of the name, as on the page of the host."""
    User.objects.filter(pk=world.operator.pk).update(first_name="Olga", last_name="Perez")
    other = User.objects.create(username="second", operator=True)
    run_of(job(world), world)
    HostStateChange.objects.create(
        host=world.hosts["alpha"],
        lease_state="silent",
        admin_state="in_service",
        repair_state="well",
        at=world.now,
        reason=f"seen powered off by {world.operator.username}: the fuse: burnt",
    )
    delivery.write_notices(world.now + MINUTE)
    notice_of = {
        row.user_id: (notice_texts.notice_sentence(row.kind, row.numbers), row.numbers)
        for row in Notification.objects.filter(kind="host_trouble")
    }
    assert world.operator.pk not in notice_of  # it is the own action of the operator
    assert notice_of[other.pk][0].endswith("(confirmed by Olga Perez: the fuse: burnt).")
    sentence, numbers = notice_of[world.vision.member.pk]
    assert sentence.endswith("(confirmed by an operator: the fuse: burnt).")
    assert world.operator.username not in {str(value) for value in numbers.values()} and "Olga" not in str(
        numbers
    )


@pytest.mark.django_db
def test_a_hardware_event_is_notified_to_operators_and_to_owners_of_moved_work(world: World) -> None:
    """Report XID 79, which cordons the host, and a warning, which only creates a notification.

    The repair state of the cordoned host stays "well".
    """
    alpha, workload = world.hosts["alpha"], job(world, preemptible=True)
    meaning = HealthRule.objects.get(code="xid:79").meaning
    run_of(workload, world, running_at=world.now)
    Workload.objects.filter(pk=workload.pk, state="queued").update(state="running", attempt=1)
    gpu = alpha.gpus.order_by("index").first()
    for number, code in enumerate(("xid:79", "xid:45", "xid:45", "xid:13")):
        HealthEvent.objects.create(
            host=alpha,
            gpu=gpu,
            event_id=str(number),
            source="xid",
            code=code,
            at=world.now,
            received_at=world.now,
        )
    apply_rules_to_events(world.now + MINUTE)
    delivery.write_notices(world.now + 2 * MINUTE)
    assert kinds(world.operator) == ["hardware_event", "hardware_event"], (
        'one notice per GPU, kind of event and hour; none for the action "note"'
    )
    notice = Notification.objects.filter(user=world.operator).order_by("pk").first()
    assert notice is not None
    sentence = notice_texts.notice_sentence(notice.kind, notice.numbers, world.operator)
    assert (
        sentence
        == f"alpha, GPU 0: {meaning} (xid:79). The host was cordoned, and work that can move leaves it."
    )
    assert kinds(world.vision.member) == ["started", "has_to_move"]
    moved = Notification.objects.get(user=world.vision.member, kind="has_to_move")
    assert notice_texts.notice_sentence(moved.kind, moved.numbers, world.vision.member) == (
        f"{workload.name} leaves alpha. GPU 0 of alpha failed (XID 79, {meaning})."
        " By its health rule, the host takes "
        "no new work, and work that can move leaves it. It is queued again with its place kept."
        " Its work since its last checkpoint is not charged, but at most the last 60 minutes before its stop."
    )
    assert kinds(world.language.member) == []


@pytest.mark.django_db
def test_a_drain_by_hand_is_notified_with_the_reason_of_the_operator(world: World) -> None:
    workload = job(world, preemptible=True)
    run_of(workload, world, running_at=world.now)
    Workload.objects.filter(pk=workload.pk, state="queued").update(state="running", attempt=1)
    scheduling.drain_host(world.hosts["alpha"], reason="new fans", now=world.now + MINUTE)
    delivery.write_notices(world.now + 2 * MINUTE)
    moved = Notification.objects.get(user=world.vision.member, kind="has_to_move")
    assert "Its host alpha is taken out of service: new fans." in notice_texts.notice_sentence(
        moved.kind, moved.numbers
    )


@pytest.mark.django_db
def test_finance_and_leads_are_notified_of_a_budget(world: World) -> None:
    budget = Budget.objects.create(team=world.vision.team, month=world.now.date().replace(day=1), amount=100)
    BudgetAlert.objects.create(budget=budget, percent=80, spent=81, at=world.now)
    delivery.write_notices(world.now + MINUTE)
    assert kinds(world.finance) == kinds(world.vision.lead) == ["budget_reached"]
    assert kinds(world.vision.member) == []


@pytest.mark.django_db
def test_a_notification_and_a_reason_name_a_budget_of_gpu_hours(world: World) -> None:
    month = world.now.date().replace(day=1)
    budget = Budget.objects.create(team=world.vision.team, month=month, measure="gpu_hours", amount=100)
    BudgetAlert.objects.create(budget=budget, percent=80, spent=81, at=world.now)
    delivery.write_notices(world.now + MINUTE)
    notice = Notification.objects.get(user=world.finance, kind="budget_reached")
    assert notice_texts.notice_sentence(notice.kind, notice.numbers).endswith(
        "has used 80 % of its budget of GPU-hours."
    )
    numbers = {"limit": "100.00", "spent": "101.50", "month": str(month), "measure": "gpu_hours"}
    assert reason_texts.reason_sentence("budget_closed", numbers).startswith(
        "The budget of GPU-hours is used up: 101.50 of 100.00."
    )
    assert reason_texts.reason_sentence("budget_closed", numbers | {"measure": "money"}).startswith(
        "The budget is used up: 101.50 of 100.00."
    )


@pytest.mark.django_db
def test_a_reservation_without_gpus_is_notified_once_to_its_owner_and_to_operators(world: World) -> None:
    reservation = Reservation.objects.create(
        pool=world.shared,
        project=world.vision.project,
        owner=world.vision.member,
        name="course",
        units=8,
        start=world.now - MINUTE,
        end=world.now + 60 * MINUTE,
        created_at=world.now,
        reason_at=world.now,
        reason_code="reserved_units_missing",
        reason_numbers={"need": 8, "free": 5, "total": 16, "closed": 3, "hosts": 1},
    )
    delivery.write_notices(world.now + MINUTE)
    delivery.write_notices(world.now + 2 * MINUTE)
    assert kinds(world.vision.member) == kinds(world.operator) == ["reservation_waits"]
    assert kinds(world.vision.lead) == kinds(world.stranger) == []
    sentence = reason_texts.reason_sentence(reservation.reason_code, reservation.reason_numbers)
    assert "needs 8; 5 of 16" in sentence and "3 are out of service" in sentence


# -- idle notebooks ------------------------------------------------------------------------------------------

START = datetime.fromisoformat("2026-03-02T09:00:00+00:00")


def activity(**changes: Any) -> NotebookActivity:
    fields: dict[str, Any] = {"busy_kernels": 0, "last": START, "gpu_idle_since": START}
    return NotebookActivity(**(fields | changes))


@pytest.mark.parametrize(
    ("minutes", "changes", "warned", "keep", "verdict"),
    [
        (54, {}, None, None, IdleVerdict.BUSY),
        (55, {}, None, None, IdleVerdict.WARN),
        (59, {}, 55, None, IdleVerdict.WAIT),
        (60, {}, 55, None, IdleVerdict.STOP),
        (600, {}, None, None, IdleVerdict.WARN),
        (60, {"busy_kernels": 1}, 55, None, IdleVerdict.BUSY),
        (60, {"last": None}, 55, None, IdleVerdict.BUSY),
        (60, {"gpu_idle_since": None}, 55, None, IdleVerdict.BUSY),
        (60, {"gpu_idle_since": START + 58 * MINUTE}, 55, None, IdleVerdict.BUSY),
        (60, {"last": START + 58 * MINUTE}, 55, None, IdleVerdict.BUSY),
        (60, {}, 55, 90, IdleVerdict.BUSY),
        (140, {}, 55, 90, IdleVerdict.BUSY),
        (145, {}, 55, 90, IdleVerdict.WARN),
    ],
)
def test_a_notebook_is_warned_and_stopped_only_if_every_signal_is_idle(
    minutes: int, changes: dict[str, Any], warned: int | None, keep: int | None, verdict: IdleVerdict
) -> None:
    found = idle_notebooks.idle_verdict(
        activity(**changes),
        limit=LIMIT,
        warned_at=None if warned is None else START + warned * MINUTE,
        keep_until=None if keep is None else START + keep * MINUTE,
        now=START + minutes * MINUTE,
    )
    assert found == verdict


def running_notebook(world: World) -> Run:
    workload = launch.launch_notebook(
        actor=world.vision.member, project=world.vision.project, pool=world.shared, name="nb", now=world.now
    )
    Workload.objects.filter(pk=workload.pk, state="queued").update(
        state="running", started_at=world.now, attempt=1
    )
    run = run_of(
        workload, world, running_at=world.now, ready_at=world.now, activity={"busy": 0, "connections": 0}
    )
    unit = units_of(world.hosts["alpha"])[0]
    Allocation.objects.create(
        run=run,
        workload=workload,
        project=workload.project,
        unit=unit,
        slots=unit.slots,
        period=(world.now, None),
        borrowed=False,
    )
    return run


def sample(run: Run, at: datetime, utilisation: float | None, **readings: float | None) -> None:
    values = {"unit_id": run.allocations.get().unit_id, "ts": at, "utilisation": utilisation, **readings}
    with connection.cursor() as cursor:
        marks = ", ".join(["%s"] * len(values))
        cursor.execute(
            f"INSERT INTO telemetry_sample ({', '.join(values)}) VALUES ({marks})", list(values.values())
        )


@pytest.mark.django_db
def test_an_idle_notebook_is_warned_then_stopped_and_its_owner_is_notified(world: World) -> None:
    run = running_notebook(world)
    for minute in range(0, 61, 5):
        sample(run, world.now + minute * MINUTE, 0.0)
    assert idle_notebooks.stop_idle_notebooks(world.now + 30 * MINUTE)["busy"] == 1
    assert idle_notebooks.stop_idle_notebooks(world.now + 56 * MINUTE)["warn"] == 1
    delivery.write_notices(world.now + 56 * MINUTE)
    assert kinds(world.vision.member)[-1] == "idle_warning"
    assert idle_notebooks.stop_idle_notebooks(world.now + 58 * MINUTE)["wait"] == 1
    assert idle_notebooks.stop_idle_notebooks(world.now + 62 * MINUTE)["stop"] == 1
    workload = Workload.objects.get()
    assert (workload.state, workload.stop_requested) == ("stopping", "idle")


@pytest.mark.django_db
def test_work_on_the_gpu_clears_the_warning(world: World) -> None:
    run = running_notebook(world)
    sample(run, world.now, 0.0)
    idle_notebooks.stop_idle_notebooks(world.now + 56 * MINUTE)
    sample(run, world.now + 57 * MINUTE, 90.0)
    assert idle_notebooks.stop_idle_notebooks(world.now + 62 * MINUTE)["busy"] == 1
    assert Workload.objects.get().idle_warned_at is None


@pytest.mark.django_db
def test_a_notebook_kept_by_its_owner_is_not_stopped(world: World) -> None:
    run = running_notebook(world)
    sample(run, world.now, 0.0)
    idle_notebooks.stop_idle_notebooks(world.now + 56 * MINUTE)
    workload_changes.keep_workload(
        actor=world.vision.member, workload=Workload.objects.get(), seconds=7200, now=world.now + 57 * MINUTE
    )
    assert idle_notebooks.stop_idle_notebooks(world.now + 62 * MINUTE)["busy"] == 1


@pytest.mark.django_db
def test_a_gpu_without_samples_does_not_count_as_idle(world: World) -> None:
    run = running_notebook(world)
    sample(run, world.now + 50 * MINUTE, None)
    assert idle_notebooks.stop_idle_notebooks(world.now + 100 * MINUTE)["busy"] == 1
    sample(run, world.now + 60 * MINUTE, None, processes=0)
    assert idle_notebooks.stop_idle_notebooks(world.now + 100 * MINUTE)["warn"] == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("readings", "is_stopped"),
    [
        ({"power_w": [70.0, 71.0]}, True),
        ({"power_w": [70.0, 300.0]}, False),
        ({"pcie_rx_kib": [900_000], "pcie_tx_kib": [0]}, False),
        ({"dram_active": [40.0]}, False),
    ],
)
def test_a_notebook_is_not_stopped_while_power_or_traffic_contradicts_its_utilisation(
    world: World, readings: dict[str, list[float]], is_stopped: bool
) -> None:
    run = running_notebook(world)
    for minute in range(61):
        now = {name: values[minute % len(values)] for name, values in readings.items()}
        # Before the work ended, the power was high. That is no sign of work afterwards.
        sample(run, world.now + minute * MINUTE, 0.0, **(now if minute else {"power_w": 500.0}))
    idle_notebooks.stop_idle_notebooks(world.now + 56 * MINUTE)
    assert idle_notebooks.stop_idle_notebooks(world.now + 62 * MINUTE)["stop"] == is_stopped
    assert (Workload.objects.get().stop_requested == "idle") is is_stopped


def record_edge_activity(run: Run, **use: Any) -> None:
    stored = {"sockets": 0, "last_request": None, "last_input": None} | use
    nudge.redis_connection().set(
        f"{idle_notebooks.WORKSPACE_KEY_PREFIX}{run.public_id}", json.dumps(stored), ex=60
    )


@pytest.mark.django_db
def test_an_open_page_keeps_a_gpu_only_while_its_user_is_active(world: World) -> None:
    run = running_notebook(world)
    later = world.now + 100 * MINUTE
    sample(run, world.now + 60 * MINUTE, 0.0)
    reported = {"busy": 0, "connections": 2, "last_message": None, "last_activity": later.timestamp()}
    Run.objects.filter(pk=run.pk).update(activity=reported)
    record_edge_activity(
        run, sockets=2, last_request=later.timestamp(), last_input=(later - 50 * MINUTE).timestamp()
    )
    assert idle_notebooks.stop_idle_notebooks(later)["busy"] == 1
    record_edge_activity(
        run, sockets=2, last_request=later.timestamp(), last_input=(later - 56 * MINUTE).timestamp()
    )
    assert idle_notebooks.stop_idle_notebooks(later)["warn"] == 1
    Run.objects.filter(pk=run.pk).update(activity=reported | {"last_message": (later - MINUTE).timestamp()})
    assert idle_notebooks.stop_idle_notebooks(later)["busy"] == 1, (
        "kernel output counts as activity, whoever started it"
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    "seen_by", ["agent alone", "edge without input times", "agent without message times"]
)
def test_a_notebook_counts_as_busy_if_little_is_known_of_its_user(world: World, seen_by: str) -> None:
    run = running_notebook(world)
    later = world.now + 100 * MINUTE
    sample(run, world.now + 60 * MINUTE, 0.0)
    reported: dict[str, Any] = {
        "busy": 0,
        "connections": 0,
        "last_message": None,
        "last_activity": later.timestamp(),
    }
    if seen_by == "agent alone":
        reported["connections"] = 1
    elif seen_by == "edge without input times":
        record_edge_activity(run, sockets=1)
    else:
        del reported["last_message"]
    Run.objects.filter(pk=run.pk).update(activity=reported)
    assert idle_notebooks.stop_idle_notebooks(later)["busy"] == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("reading", "background", "verdict"),
    [
        ({"sm_active": 40.0, "processes": 1}, None, "busy"),
        ({"sm_active": 0.0, "processes": 1}, None, "warn"),
        ({"processes": 1}, None, "busy"),
        ({"processes": 1}, 60, "busy"),
        ({"processes": 1}, 0, "warn"),
        ({"processes": 0}, None, "warn"),
        ({}, 0, "busy"),
    ],
)
def test_a_slice_is_idle_if_it_has_no_activity_or_only_idle_kernels_run_on_it(
    world: World, reading: dict[str, Any], background: int | None, verdict: str
) -> None:
    run = running_notebook(world)
    later = world.now + 100 * MINUTE
    sample(run, later - 10 * MINUTE, None, **reading)
    moment = None if background is None else (world.now + background * MINUTE).timestamp()
    reported = {"busy": 0, "connections": 0, "last_message": None, "last_background": moment}
    Run.objects.filter(pk=run.pk).update(activity=reported)
    assert idle_notebooks.stop_idle_notebooks(later)[verdict] == 1


def submit_sweep(world: World, tasks: int) -> list[Workload]:
    """Submit an array and return its tasks in the order of their indices."""
    job_array = launch.submit_array(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        name="sweep",
        command="x",
        units=1,
        models=[H100],
        max_runtime_seconds=3600,
        array=f"0-{tasks - 1}",
        now=world.now,
    )
    return list(job_array.tasks.order_by("array_index"))


def end_task(task: Workload, at: datetime, outcome: str, **numbers: Any) -> None:
    Workload.objects.filter(pk=task.pk).update(ended_at=at, outcome=outcome, outcome_numbers=numbers)
    Workload.objects.filter(pk=task.pk, state="queued").update(state="ended")


def sentences_for(user: Any) -> list[str]:
    notices = Notification.objects.filter(user=user).order_by("pk")
    return [notice_texts.notice_sentence(notice.kind, notice.numbers, user) for notice in notices]


@pytest.mark.django_db
def test_an_array_of_many_tasks_notifies_its_start_once_and_its_end_once_with_counts(
    world: World,
) -> None:
    tasks = submit_sweep(world, 4)
    for number, task in enumerate(tasks):
        run_of(task, world, running_at=world.now + number * MINUTE)
        delivery.write_notices(world.now + number * MINUTE)
        end_task(task, world.now + number * MINUTE, "finished" if number != 3 else "cancelled")
    delivery.write_notices(world.now + 4 * MINUTE)
    delivery.write_notices(world.now + 5 * MINUTE)
    assert sentences_for(world.vision.member) == [
        "sweep started: the first of its 4 tasks runs on alpha.",
        "sweep ended. Of its 4 tasks 3 finished and 1 cancelled.",
    ]


@pytest.mark.django_db
def test_the_first_failed_task_of_an_array_is_notified_at_once_and_later_ones_together(world: World) -> None:
    tasks = submit_sweep(world, 6)
    for number, task in enumerate(tasks[:-1]):
        end_task(task, world.now + number * MINUTE, "failed", exit_code=number)
        delivery.write_notices(world.now + number * MINUTE)
    assert kinds(world.vision.member) == ["array_fails"] * 3
    assert sentences_for(world.vision.member)[0] == (
        "sweep: 1 of its 6 tasks failed so far. The last, sweep[0]: It failed with exit code 0."
    )
    assert "sweep: 4 of its 6 tasks failed so far." in sentences_for(world.vision.member)[-1]
    end_task(tasks[-1], world.now + 30 * MINUTE, "finished")
    delivery.write_notices(world.now + 30 * MINUTE)
    assert "Of its 6 tasks 1 finished and 5 failed." in sentences_for(world.vision.member)[-1]


@pytest.mark.django_db
def test_evicted_tasks_of_an_array_are_notified_together(world: World) -> None:
    for task in submit_sweep(world, 8):
        numbers = {"team": world.language.team.pk, "workload": 0}
        Decision.objects.create(
            workload=task,
            kind="evicted",
            code="evicted_for_guarantee",
            numbers=numbers,
            epoch=1,
            at=world.now,
        )
    delivery.write_notices(world.now + MINUTE)
    assert [sentence.partition(".")[0] for sentence in sentences_for(world.vision.member)] == [
        "sweep, or a part of it, is being preempted"
    ]


@pytest.mark.django_db
def test_a_start_that_moves_is_notified_once_for_an_array(world: World) -> None:
    tasks = submit_sweep(world, 8)
    of_all = Workload.objects.filter(pk__in=[task.pk for task in tasks])
    of_all.update(expected_start=world.now + timedelta(hours=1))
    delivery.write_notices(world.now)
    of_all.update(expected_start=world.now + timedelta(hours=9))
    delivery.write_notices(world.now + MINUTE)
    assert [sentence.partition(" is now")[0] for sentence in sentences_for(world.vision.member)] == ["sweep"]
