"""Test that the cached snapshot equals a fresh snapshot after any change and any order of commits."""

from __future__ import annotations

import contextlib
import datetime as dt
import inspect
import logging
import random
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduler import services
from scheduler.coordination import leadership
from scheduler.core.model.snapshot_delta import sort_rows
from scheduler.core.planner import plan
from scheduler.cycle import core_values, engine, snapshot, snapshot_rows
from scheduler.cycle.snapshot_cache import MAX_PLAN_AGE_SECONDS, SELF_CHECK_SECONDS, SnapshotCache
from scheduler.models import (
    Allocation,
    Gpu,
    Host,
    Leader,
    MaintenanceWindow,
    Pool,
    Reservation,
    Run,
    Team,
    Unit,
    Workload,
)
from scheduler.requests import HARDWARE_COLUMNS
from tests.fakes import FakeAgent
from tests.seeds import seeds
from tests.world import A100, H100, MONDAY, World, build_world, make_gpu, make_host, queue_workload

pytestmark = pytest.mark.django_db(transaction=True)

SECOND, HOUR = dt.timedelta(seconds=1), dt.timedelta(hours=1)


@pytest.fixture
def world(transactional_db: None) -> World:
    """Return the committed organisation on Monday morning."""
    return build_world(MONDAY)


def job(world: World, now: dt.datetime, **overrides: Any) -> Workload:
    fields: dict[str, Any] = {
        "kind": "job",
        "type": "training",
        "name": "a job",
        "pool": world.shared,
        "project": world.vision.project,
        "owner": world.vision.member,
        "units": 1,
        "models_wanted": [H100],
        "max_runtime_seconds": 3600,
        "preemptible": True,
        "command": "true",
        "now": now,
        **overrides,
    }
    return queue_workload(**fields)


def assert_equals_fresh_snapshot(warm: SnapshotCache, epoch: int, now: dt.datetime) -> None:
    warm.refresh(epoch, now)
    fresh, mine = sort_rows(snapshot.take_snapshot(None, now)), sort_rows(warm.standing.snapshot())
    for table in (
        "pools",
        "hosts",
        "units",
        "teams",
        "quotas",
        "decayed_use",
        "queued",
        "running",
        "reservations",
        "maintenance",
    ):
        assert getattr(mine, table) == getattr(fresh, table), table
    assert mine == fresh


class RandomChanges:
    """Random changes of a pool by the real services, drawn from one seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.dice, self.now = world, random.Random(seed), world.now
        self.warm, self.epoch = SnapshotCache(), 0
        self.agents = {name: FakeAgent.of(host) for name, host in world.hosts.items()}

    def step(self) -> str:
        """Make one random change and advance the time."""
        verb: Callable[[], None] = self.dice.choice(
            [
                self.queue,
                self.queue,
                self.queue,
                self.cycle,
                self.cycle,
                self.sync,
                self.sync,
                self.cancel,
                self.reserve,
                self.give_up,
                self.gate,
                self.quota,
                self.host,
                self.maintenance,
                self.extend,
                self.end,
                self.hardware,
                self.pool,
            ]
        )
        verb()
        self.now += self.dice.choice((1, 1, 5, 30, 200, 2_000)) * SECOND
        return verb.__name__

    def team(self) -> Any:
        return self.dice.choice(self.world.teams)

    def queue(self) -> None:
        team = self.team()
        inside = (
            Reservation.objects.filter(project=team.project, state__in=("confirmed", "active"))
            .order_by("?")
            .first()
        )
        job(
            self.world,
            self.now,
            project=team.project,
            owner=self.dice.choice(team.members),
            units=self.dice.choice((1, 1, 2, 4, 8)),
            hosts=self.dice.choice((1, 1, 1, 2)),
            models_wanted=self.dice.choice(([H100], [A100], [])),
            priority=self.dice.choice((0, 1, 2)),
            max_runtime_seconds=self.dice.choice((600, 3600)),
            preemptible=self.dice.random() < 0.7,
            reservation=inside if self.dice.random() < 0.3 else None,
            most_retries=1,
        )

    def cycle(self) -> None:
        self.epoch = leadership.acquire_or_renew("life", self.now) or 0
        engine.run_cycle("life", self.now, cache=self.warm if self.dice.random() < 0.7 else None)

    def sync(self) -> None:
        for agent in self.agents.values():
            agent.sync(self.now)

    def end(self) -> None:
        agent = self.dice.choice(list(self.agents.values()))
        if agent.runs:
            agent.end(self.dice.choice(list(agent.runs)), self.now, self.dice.choice(("finished", "failed")))
            agent.sync(self.now)

    def a_workload(self) -> Workload | None:
        return self.dice.choice(list(Workload.objects.exclude(state="ended").order_by("pk")) or [None])

    def cancel(self) -> None:
        workload = self.a_workload()
        if workload:
            services.cancel_workload(workload, now=self.now)

    def extend(self) -> None:
        workload = self.a_workload()
        if workload:
            services.extend_workload(workload, seconds=60, now=self.now)

    def reserve(self) -> None:
        team, start = self.team(), self.now + self.dice.choice((0, 60, 4000)) * SECOND
        services.confirm_reservation(
            owner=team.lead,
            project=team.project,
            pool=self.world.shared,
            name="r",
            units=self.dice.choice((1, 2)),
            models_wanted=[H100],
            start=start,
            end=start + self.dice.choice((300, 3600)) * SECOND,
            now=self.now,
        )

    def give_up(self) -> None:
        reservation = Reservation.objects.filter(state__in=("confirmed", "active")).order_by("?").first()
        if reservation:
            services.cancel_reservation(reservation, now=self.now)

    def gate(self) -> None:
        owner: dict[str, Any] = self.dice.choice(
            ({"team": self.team().team}, {"project": self.team().project})
        )
        action = self.dice.choice(("refuse_new", "stop_borrowing"))
        if self.dice.random() < 0.6:
            numbers, until = (
                {"limit": str(self.dice.randint(1, 9))},
                self.now + self.dice.choice((60, 3600)) * SECOND,
            )
            services.close_budget_gate(action=action, numbers=numbers, until=until, now=self.now, **owner)
        else:
            services.open_budget_gate(action=action, **owner)

    def quota(self) -> None:
        services.change_quota(
            team=self.team().team,
            pool=self.world.shared,
            model=self.dice.choice((H100, A100)),
            guaranteed_slots=840 * self.dice.randint(0, 4),
            borrow_limit_slots=self.dice.choice((None, 0, 1680)),
            now=self.now,
        )

    def host(self) -> None:
        host = self.dice.choice(list(self.world.hosts.values()))
        verb = self.dice.choice(
            (services.cordon_host, services.drain_host, services.return_host, services.quarantine_host)
        )
        verb(Host.objects.get(pk=host.pk), reason="test", now=self.now)

    def maintenance(self) -> None:
        window = MaintenanceWindow.objects.order_by("?").first()
        if window and self.dice.random() < 0.5:
            services.cancel_maintenance(window, now=self.now)
        else:
            host, start = (
                self.dice.choice(list(self.world.hosts.values())),
                self.now + self.dice.choice((10, 600)) * SECOND,
            )
            with contextlib.suppress(services.OperationRejected):  # the window overlaps another window
                services.set_maintenance(
                    host, start=start, end=start + 600 * SECOND, reason="fan", now=self.now
                )

    def hardware(self) -> None:
        unit, gpu = Unit.objects.order_by("?")[0], Gpu.objects.order_by("?")[0]
        self.dice.choice(
            (
                lambda: Unit.objects.filter(pk=unit.pk).update(
                    retired_at=None if unit.retired_at else self.now
                ),
                lambda: services.quarantine_gpu(gpu, reason="xid", now=self.now),
                lambda: services.return_gpu(gpu, now=self.now),
                lambda: Gpu.objects.filter(pk=gpu.pk).update(retired_at=None if gpu.retired_at else self.now),
                lambda: make_gpu(self.world.hosts["delta"], 100 + Gpu.objects.count(), H100, self.now),
                lambda: make_host(f"extra-{Host.objects.count()}", self.world.shared, [H100], self.now),
                lambda: Host.objects.filter(pk=gpu.host_id).update(disk_full=not gpu.host.disk_full),
            )
        )()

    def pool(self) -> None:
        Pool.objects.filter(pk=self.world.shared.pk).update(spare_slots=self.dice.choice((0, 840)))
        Team.objects.filter(pk=self.world.vision.team.pk).update(weight=self.dice.choice((1, 2)))


@pytest.mark.parametrize("seed", seeds(short=1, total=4))
def test_after_random_changes_the_cached_snapshot_equals_a_fresh_one(world: World, seed: int) -> None:
    life, history = RandomChanges(world, seed), []
    life.cycle()
    for number in range(45):
        history.append(life.step())
        if number % 3 == 0:
            epoch = leadership.acquire_or_renew("life", life.now)
            assert epoch is not None
            assert_equals_fresh_snapshot(life.warm, epoch, life.now)
    assert life.warm.full_reads < 30, history  # a change of a pool or team causes a full read
    at = core_values.epoch_seconds(life.now)
    assert life.warm.standing.plan(at) == plan(life.warm.standing.snapshot(), at)


def test_a_late_commit_of_an_older_transaction_is_not_missed(world: World) -> None:
    epoch = leadership.acquire_or_renew("test", world.now)
    assert epoch is not None
    warm = SnapshotCache()
    warm.refresh(epoch, world.now)
    began, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        with transaction.atomic():
            job(world, world.now, name="written first")
            began.set()
            go_on.wait(10)
        connections.close_all()

    other = threading.Thread(target=slow)
    other.start()
    assert began.wait(10)
    # Use another team: submissions of one team or person are serialised.
    quick = job(
        world, world.now, name="committed first", project=world.language.project, owner=world.language.member
    )
    assert_equals_fresh_snapshot(warm, epoch, world.now)
    assert [q.id for q in warm.standing.snapshot().queued] == [quick.pk]
    go_on.set()
    other.join()
    assert_equals_fresh_snapshot(warm, epoch, world.now)
    assert len(warm.standing.snapshot().queued) == 2 and warm.full_reads == 1


def test_removed_and_moved_rows_leave_the_snapshot(world: World) -> None:
    epoch = leadership.acquire_or_renew("test", world.now) or 0
    warm = SnapshotCache()
    warm.refresh(epoch, world.now)
    services.remove_host(world.hosts["alpha"], reason="", now=world.now)
    assert_equals_fresh_snapshot(warm, epoch, world.now)
    assert "alpha" not in {host.name for host in warm.standing.snapshot().hosts}
    services.move_host(world.hosts["beta"], world.static, reason="", now=world.now)
    assert_equals_fresh_snapshot(warm, epoch, world.now)
    assert {h.name for h in warm.standing.snapshot().hosts if h.pool == world.static.pk} == {"beta", "delta"}
    services.remove_team(world.robotics.team, now=world.now)
    assert_equals_fresh_snapshot(warm, epoch, world.now)
    services.remove_host(world.hosts["gamma"], reason="", now=world.now)
    services.remove_pool(world.shared, now=world.now)
    assert_equals_fresh_snapshot(warm, epoch, world.now)
    assert [pool.id for pool in warm.standing.snapshot().pools] == [world.static.pk]


def test_changes_that_are_rolled_back_are_not_in_the_snapshot(world: World) -> None:
    epoch = leadership.acquire_or_renew("test", world.now) or 0
    warm = SnapshotCache()
    warm.refresh(epoch, world.now)
    with transaction.atomic():
        job(world, world.now)
        transaction.set_rollback(True)
    assert_equals_fresh_snapshot(warm, epoch, world.now)
    with transaction.atomic():
        job(world, world.now)
        warm.refresh(epoch, world.now)
        assert len(warm.standing.snapshot().queued) == 1
        transaction.set_rollback(True)
    assert_equals_fresh_snapshot(warm, epoch, world.now)


def test_a_new_epoch_causes_a_full_read(world: World) -> None:
    """Read all rows in a new epoch.

    Only the leader prunes the feed, so a former leader cannot know which changes it missed.
    """
    warm, other = SnapshotCache(), SnapshotCache()
    first = leadership.acquire_or_renew("first", world.now) or 0
    warm.refresh(first, world.now)
    second = leadership.acquire_or_renew("second", world.now + 6 * SECOND) or 0
    other.refresh(second, world.now + 6 * SECOND)
    job(world, world.now)
    other.refresh(second, world.now + 7 * SECOND)
    assert _feed_rows() == 0, "the second leader has pruned the feed"
    third = leadership.acquire_or_renew("first", world.now + 13 * SECOND) or 0
    assert_equals_fresh_snapshot(warm, third, world.now + 13 * SECOND)
    assert len(warm.standing.snapshot().queued) == 1


@pytest.mark.long
def test_engines_that_alternate_as_leader_start_everything_once(world: World) -> None:
    """Run three engines with separate snapshots. The leader prunes the feed. A new leader reads all rows."""
    engines = {name: SnapshotCache() for name in ("one", "two", "three")}
    now = world.now
    for turn in range(9):
        name = ("one", "two", "three", "one", "three")[turn % 5]
        job(world, now, project=world.teams[turn % 3].project, owner=world.teams[turn % 3].member)
        for other, warm in engines.items():
            assert (engine.run_cycle(other, now, cache=warm) is not None) == (
                Leader.objects.get(pk=1).holder == other
            )
        now += 6 * SECOND
        assert engine.run_cycle(name, now, cache=engines[name]) is not None
        epoch = Leader.objects.get(pk=1).epoch
        assert_equals_fresh_snapshot(engines[name], epoch, now)
    assert not Workload.objects.filter(state="queued").exists()
    assert Run.objects.count() == 9
    held = Allocation.objects.values_list("unit_id", flat=True)
    assert len(held) == len(set(held)) == 9


def test_the_self_check_finds_a_difference_and_takes_the_fresh_snapshot(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    epoch = leadership.acquire_or_renew("test", world.now) or 0
    warm = SnapshotCache()
    warm.refresh(epoch, world.now)
    _as_owner("ALTER TABLE scheduler_workload DISABLE TRIGGER changes_are_noted_on_insert")
    job(world, world.now)
    _as_owner("ALTER TABLE scheduler_workload ENABLE TRIGGER changes_are_noted_on_insert")
    warm.refresh(epoch, world.now + SECOND)
    assert warm.standing.snapshot().queued == ()
    with caplog.at_level(logging.ERROR):
        warm.refresh(epoch, world.now + (SELF_CHECK_SECONDS + 1) * SECOND)
    assert "differed from the database in queued" in caplog.text
    assert_equals_fresh_snapshot(warm, epoch, world.now + (SELF_CHECK_SECONDS + 2) * SECOND)


def test_a_cycle_without_changes_takes_few_queries_and_does_not_plan(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm = SnapshotCache()
    for _ in range(20):
        job(world, world.now, units=8)
    for step in range(3):  # in the last of these cycles, no reason of a waiting workload changes any more
        engine.run_cycle("test", world.now + step * SECOND, cache=warm)
    plans = []
    real = type(warm.standing).plan
    monkeypatch.setattr(type(warm.standing), "plan", lambda self, now: plans.append(now) or real(self, now))
    with CaptureQueriesContext(connection) as asked:
        engine.run_cycle("test", world.now + 3 * SECOND, cache=warm)
    assert not plans and len(asked) <= 10, [q["sql"][:80] for q in asked]
    engine.run_cycle("test", world.now + (MAX_PLAN_AGE_SECONDS + 4) * SECOND, cache=warm)
    assert len(plans) == 1, "estimates change with time"
    job(world, world.now)
    engine.run_cycle("test", world.now + (MAX_PLAN_AGE_SECONDS + 5) * SECOND, cache=warm)
    assert len(plans) == 2


def test_a_change_that_only_time_causes_is_decided_when_its_time_comes(world: World) -> None:
    warm = SnapshotCache()
    reservation, _ = services.confirm_reservation(
        owner=world.vision.lead,
        project=world.vision.project,
        pool=world.shared,
        name="r",
        units=2,
        models_wanted=[H100],
        start=world.now + 5 * SECOND,
        end=world.now + HOUR,
        now=world.now,
    )
    assert reservation is not None
    waiting = job(world, world.now, project=world.language.project, owner=world.language.member)
    Workload.objects.filter(pk=waiting.pk).update(not_before=world.now + 7 * SECOND)
    engine.run_cycle("test", world.now, cache=warm)
    engine.run_cycle("test", world.now + SECOND, cache=warm)
    engine.run_cycle("test", world.now + 5 * SECOND, cache=warm)
    reservation.refresh_from_db()
    assert reservation.state == "active"
    engine.run_cycle("test", world.now + 6 * SECOND, cache=warm)
    assert Workload.objects.get(pk=waiting.pk).state == "queued"
    engine.run_cycle("test", world.now + 7 * SECOND, cache=warm)
    assert Workload.objects.get(pk=waiting.pk).state == "placed"


def test_a_rejected_part_of_a_plan_is_planned_again_in_the_next_cycle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm = SnapshotCache()
    engine.run_cycle("test", world.now, cache=warm)
    workload = job(world, world.now)
    with monkeypatch.context() as patch:
        patch.setattr(
            "scheduler.cycle.plan_checks.PlanChecks.placement_problem",
            lambda self, placement: "rejected by the test",
        )
        applied = engine.run_cycle("test", world.now + SECOND, cache=warm)
        assert applied is not None and applied.rejected
    engine.run_cycle("test", world.now + 2 * SECOND, cache=warm)
    assert Workload.objects.get(pk=workload.pk).state == "placed"


def test_a_cleared_reason_is_written_again(world: World) -> None:
    warm = SnapshotCache()
    for _ in range(10):
        job(world, world.now, units=8)
    for step in range(3):
        engine.run_cycle("test", world.now + step * SECOND, cache=warm)
    workload = Workload.objects.filter(state="queued").latest("pk")
    Workload.objects.filter(pk=workload.pk).update(reason_code="", not_before=world.now)  # as after a requeue
    engine.run_cycle("test", world.now + 4 * SECOND, cache=warm)
    workload.refresh_from_db()
    assert workload.reason_code != ""


def test_the_feed_is_pruned_to_unread_rows(world: World) -> None:
    warm = SnapshotCache()
    epoch = leadership.acquire_or_renew("test", world.now) or 0
    warm.refresh(epoch, world.now)
    for _ in range(5):
        job(world, world.now)
    assert _feed_rows() >= 5
    warm.refresh(epoch, world.now)
    assert _feed_rows() == 0


def test_feed_rows_from_a_backup_of_another_server_are_removed(world: World) -> None:
    """Remove rows whose transaction ids are ahead of this server's ids. They would never be read."""
    warm = SnapshotCache()
    epoch = leadership.acquire_or_renew("test", world.now) or 0
    warm.refresh(epoch, world.now)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO scheduler_change VALUES ('9000000000000000000', 'everything', 0), ('1', 'host', 1)"
        )
    for _ in range(3):
        warm.refresh(epoch, world.now)
    assert _feed_rows() == 0 and warm.full_reads == 2


def test_unchanged_reports_of_agents_add_no_row_to_the_feed(world: World) -> None:
    warm = SnapshotCache()
    epoch = leadership.acquire_or_renew("test", timezone.now()) or 0
    agents = [FakeAgent.of(host) for host in world.hosts.values()]
    for agent in agents:
        agent.sync(world.now)
    warm.refresh(epoch, world.now)
    for agent in agents:
        agent.sync(world.now + SECOND)
    assert _feed_rows() == 0


def _as_owner(statement: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE NONE")
        cursor.execute(statement)


def _feed_rows() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM scheduler_change")
        return int(cursor.fetchone()[0])


# Every column that the snapshot reads needs a trigger. Otherwise only the next self-check sees a change.
READ_BY_NAME = {
    "scheduler_workload": {
        c
        for c in (*snapshot_rows.RUNNING_COLUMNS, *snapshot_rows.QUEUED_COLUMNS)
        if "__" not in c and c != "pk"
    },
    "scheduler_host": {c for c in snapshot_rows.HOST_COLUMNS if "__" not in c and c != "pk"},
    "scheduler_quota": set(snapshot_rows.QUOTA_COLUMNS),
    "scheduler_gpu": set(re.findall(r"gpu\.(\w+)", snapshot_rows.READ_UNITS_SQL)) - {"id"},
    "scheduler_unit": set(re.findall(r"unit\.(\w+)", snapshot_rows.READ_UNITS_SQL)) - {"id"},
    "scheduler_reservation": {
        *HARDWARE_COLUMNS,
        "state",
        "start",
        "end",
        "pool_id",
        "project_id",
        "may_exceed_guarantee",
    },
    "scheduler_pool": set(re.findall(r"pool\.(\w+)", inspect.getsource(snapshot_rows.pool_from_row))) - {"pk"}
    | {c.removeprefix("pool__") for c in snapshot_rows.HOST_COLUMNS if c.startswith("pool__")},
}


@pytest.mark.parametrize("table", sorted(READ_BY_NAME))
def test_every_column_that_the_snapshot_reads_has_a_trigger(table: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT prosrc FROM pg_proc WHERE proname = %s", [f"scheduler_watch_{table}_update"])
        source = cursor.fetchone()[0]
    watched = {name.strip('"') for name in re.findall(r'after\.("?\w+"?)', source)}
    missing = READ_BY_NAME[table] - watched
    assert not missing, (
        f"a migration has to call scheduler.state.change_feed.watch_table_sql for {table} again,"
        f" with {sorted(missing)}"
    )
