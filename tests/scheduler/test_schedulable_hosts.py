"""Test that the snapshot, the placement check, the counts of free units and the pages agree on each host.

They must all report whether the host takes new work.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from collections.abc import Callable

import pytest
from django.db import connection
from django.db.backends.postgresql.psycopg_any import NumericRange

from portal.reads.fleet import gpu_overview, host_details
from scheduler import services
from scheduler.core.model.plan import Placement
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.planner import plan
from scheduler.cycle import core_values, engine, schedulable_hosts, snapshot
from scheduler.cycle.apply import apply_plan
from scheduler.models import Gpu, Host, Pool, Unit
from scheduler.reads import capacity
from scheduler.reads.closed_hosts import closed_hosts
from scheduler.services.powered_off import attest_powered_off
from scheduler.state.isolation import ISOLATION_LEVELS
from scheduler.state.states import AdminState, LeaseState, RepairState
from scheduler.sweeps.maintenance import sweep_maintenance
from tests.scheduler.test_job_lifecycle import job
from tests.seeds import first_cases
from tests.world import H100, World

HOUR = dt.timedelta(hours=1)


def set_columns(**columns: object) -> Callable[[World, Host], object]:
    return lambda world, host: Host.objects.filter(pk=host.pk).update(**columns)


def maintenance(world: World, host: Host) -> None:
    services.set_maintenance(host, start=world.now, end=world.now + HOUR, reason="fans", now=world.now)
    sweep_maintenance(world.now)


def off(world: World, host: Host) -> None:
    Host.objects.filter(pk=host.pk).update(last_sync_at=world.now - HOUR)
    assert attest_powered_off(Host.objects.get(pk=host.pk), reason="seen", now=world.now)


def revoked(world: World, host: Host) -> None:
    assert services.revoke_credential(Host.objects.get(pk=host.pk), now=world.now)


# Ways to close a host, each with the reason code that waiting workloads get.
CLOSED: dict[str, tuple[Callable[[World, Host], object], str]] = {
    "cordoned": (lambda world, host: services.cordon_host(host, reason="fan", now=world.now), "host_closed"),
    "draining": (lambda world, host: services.drain_host(host, reason="fan", now=world.now), "host_closed"),
    "quarantined": (
        lambda world, host: services.quarantine_host(host, reason="fan", now=world.now),
        "host_closed",
    ),
    "being diagnosed": (set_columns(repair_state=RepairState.DIAGNOSING), "host_closed"),
    "out": (set_columns(repair_state=RepairState.OUT), "host_closed"),
    "tripped": (lambda world, host: services.trip_host(host, reason="fan", now=world.now), "host_closed"),
    "in maintenance": (maintenance, "held_for_maintenance"),
    "never reported": (set_columns(lease_state=LeaseState.JOINING), "host_closed"),
    "one renewal late": (set_columns(lease_state=LeaseState.SUSPECT), "host_closed"),
    "silent": (set_columns(lease_state=LeaseState.SILENT), "host_closed"),
    "counted as off": (off, "host_closed"),
    "revoked": (revoked, "host_closed"),
    "with a full disk": (set_columns(disk_full=True), "host_full"),
    "that cannot run work as its owner": (
        lambda world, host: Pool.objects.filter(pk=host.pool_id).update(runs_as="person"),
        "person_users_missing",
    ),
    "with too weak isolation": (
        lambda world, host: Pool.objects.filter(pk=host.pool_id).update(isolation="sandbox"),
        "isolation_too_weak",
    ),
}
# The states that the short part tests: the first one of each reason.
FIRST_OF_EACH_REASON = list({reason: state for state, (_, reason) in reversed(CLOSED.items())}.values())
OTHERS = [state for state in CLOSED if state not in FIRST_OF_EACH_REASON]


def answers(world: World, host: Host) -> dict[str, bool]:
    """Return {part of the program: True if this part considers the host open for new work}."""
    fresh = Host.objects.select_related("pool").get(pk=host.pk)
    row = next(row for row in snapshot.take_snapshot(None, world.now).hosts if row.id == host.pk)
    assert row.schedulable == (not row.closed_code)
    cells = [
        cell
        for group in gpu_overview.fleet_overview(world.operator, world.now)
        for each in group.hosts
        for cell in each.cells
    ]
    host_cells = [cell for cell in cells if cell.gpu.host_id == host.pk]
    return {
        "snapshot": row.schedulable,
        "function": schedulable_hosts.is_schedulable(fresh),
        "condition": capacity.free_units(fresh.pool, world.now).filter(gpu__host=fresh).exists(),
        "closed hosts": fresh.name not in {row["host"] for row in closed_hosts(fresh.pool_id)},
        "fleet": any(not cell.away for cell in host_cells),
        "page": any(unit["takes_work"] for unit in host_details.host_units(world.operator, fresh, world.now)),
    }


def is_placed_on(world: World, host: Host, close: Callable[[World, Host], object]) -> bool:
    """Return True if a placement planned for the host is accepted after the host was closed."""
    engine.run_cycle("test", world.now)  # acquires leadership
    waiting = job(world, world.vision, 1, world.now)
    taken = snapshot.take_snapshot(None, world.now)
    planned = plan(taken, core_values.epoch_seconds(world.now))
    meant = next(p for p in planned.placements if p.workload == waiting.pk)
    unit = Unit.objects.filter(gpu__host=host, allocations__isnull=True).order_by("pk").first()
    assert unit is not None
    moved = dataclasses.replace(meant, units=(unit.pk,))
    close(world, host)
    done = apply_plan(dataclasses.replace(planned, placements=(moved,)), taken, world.now)
    return [p for p in done.accepted if isinstance(p, Placement)] == [moved]


def test_all_parts_report_an_open_host_as_open(world: World) -> None:
    assert set(answers(world, world.hosts["beta"]).values()) == {True}
    assert is_placed_on(world, world.hosts["beta"], lambda world, host: None)


@pytest.mark.parametrize("state", first_cases(len(FIRST_OF_EACH_REASON), [*FIRST_OF_EACH_REASON, *OTHERS]))
def test_all_parts_report_a_closed_host_as_closed_and_nothing_is_placed_on_it(
    world: World, state: str
) -> None:
    close, code = CLOSED[state]
    host = world.hosts["beta"]
    assert not is_placed_on(world, host, close)
    assert answers(world, host) == dict.fromkeys(answers(world, host), False)
    assert (
        next(row for row in snapshot.take_snapshot(None, world.now).hosts if row.id == host.pk).closed_code
        == code
    )


@pytest.mark.long
def test_snapshot_query_and_function_agree_for_every_combination_of_states(world: World) -> None:
    """Check every combination of states, including combinations that cannot occur."""
    now = world.now
    pools = {
        level: Pool.objects.create(
            slug=f"p-{level}",
            name=level,
            kind="dynamic",
            isolation=level,
            runs_as="person" if level == "sandbox" else "team",
            created_at=now,
        )
        for level in ISOLATION_LEVELS
    }
    states = itertools.product(
        LeaseState, AdminState, RepairState, ISOLATION_LEVELS, (False, True), ISOLATION_LEVELS
    )
    created = Host.objects.bulk_create(
        Host(
            pool=pools[demanded],
            name=f"h{number}",
            lease_state=lease,
            admin_state=admin,
            repair_state=repair,
            isolation_level=level,
            disk_full=full,
            person_users=number % 3 == 0,
            created_at=now,
        )
        for number, (lease, admin, repair, level, full, demanded) in enumerate(states)
    )
    gpus = Gpu.objects.bulk_create(
        Gpu(
            host=host,
            pool_id=host.pool_id,
            index=0,
            uuid=f"GPU-{host.name}",
            model=H100,
            memory_mib=81_559,
            compute_capability=90,
            created_at=now,
        )
        for host in created
    )
    Unit.objects.bulk_create(
        Unit(
            gpu=gpu,
            slots=NumericRange(gpu.first_slot, gpu.first_slot + SLOTS_PER_GPU),
            uuid=gpu.uuid,
            memory_mib=81_559,
            created_at=now,
        )
        for gpu in gpus
    )
    # Without statistics of the new rows, the database would choose a slow nested loop.
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_nestloop = off")
    free = Unit.objects.filter(capacity.free_unit_filter(now), gpu__host__in=created).values_list(
        "gpu__host", flat=True
    )
    planned_on = {
        row.id
        for row in snapshot.take_snapshot([pool.pk for pool in pools.values()], now).hosts
        if row.schedulable
    }
    by_row = {host.pk for host in created if schedulable_hosts.is_schedulable(host)}
    assert set(free) == planned_on == by_row
    enough = {host.pk for host in created if host.pool.runs_as == "team" or host.person_users}
    assert by_row <= enough
    assert 4 + 2 + 1 < len(by_row) <= 4 + 3 + 2 + 1, (
        "only hosts that are well, in service, alive and isolated enough take work"
    )
