"""Test reservations whose hosts are drained or in maintenance: some move, others can't be served."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    MaintenanceInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    QueuedWorkload,
    QuotaInfo,
    ReservationInfo,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.planner import plan
from scheduler.core.promises.reservation_windows import check_reservation_window
from scheduler.core.promises.unserved import unserved_reservations
from scheduler.core.what_if.drain import ReservationEffect, drain_effect, maintenance_effect

NOW, HOUR = 1_000_000, 3600
H100, A100 = Ask(2, models=("H100",)), Ask(2, models=("A100",))
WINDOW = (NOW + 5 * HOUR, NOW + 7 * HOUR)


def three_hosts(**rows: Any) -> Snapshot:
    """Return hosts 1 and 2 with two H100 each, and host 3 with two A100; all are free."""
    base = Snapshot(
        epoch=1,
        pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy()),),
        hosts=tuple(HostInfo(host, f"h{host}", 1) for host in (1, 2, 3)),
        units=tuple(
            UnitInfo(10 * host + gpu, host, 10 * host + gpu, "A100" if host == 3 else "H100")
            for host in (1, 2, 3)
            for gpu in range(2)
        ),
        teams=(TeamInfo(1, "red"),),
        quotas=(QuotaInfo(1, 1, "H100", 4 * SLOTS_PER_GPU), QuotaInfo(1, 1, "A100", 2 * SLOTS_PER_GPU)),
    )
    return replace(base, **rows)


def reserved(number: int, ask: Ask, start: int, end: int, units: tuple[int, ...] = ()) -> ReservationInfo:
    return ReservationInfo(number, 1, 1, 1, ask, NOW + start * HOUR, NOW + end * HOUR, units)


def test_a_drain_lists_bound_reservations_that_move_and_reservations_that_it_breaks() -> None:
    snapshot = three_hosts(
        reservations=(reserved(7, H100, -1, 3, units=(10, 11)), reserved(8, A100, -1, 3, units=(30, 31)))
    )
    moved, broken = drain_effect(snapshot, 1, NOW), drain_effect(snapshot, 3, NOW)
    assert (moved.reservations, moved.moved_reservations, moved.broken_reservations) == ((7,), (7,), ())
    assert (broken.reservations, broken.moved_reservations, broken.broken_reservations) == ((8,), (), (8,))


def test_maintenance_lists_future_reservations_that_it_would_move_or_break() -> None:
    """Check the planned units of the reservations, because a reservation has no units before its start."""
    snapshot = three_hosts(reservations=(reserved(7, H100, 4, 6), reserved(8, A100, 4, 6)))
    effects = [maintenance_effect(snapshot, host, *WINDOW, NOW) for host in (1, 2)]
    assert sorted(effects, key=lambda effect: effect.moved) == [
        ReservationEffect((), ()),
        ReservationEffect((7,), ()),
    ]
    assert maintenance_effect(snapshot, 3, *WINDOW, NOW) == ReservationEffect((), (8,))
    after = (NOW + 6 * HOUR, NOW + 7 * HOUR)
    assert maintenance_effect(snapshot, 3, *after, NOW) == ReservationEffect((), ())


def test_maintenance_has_the_same_effect_after_it_is_announced() -> None:
    snapshot = three_hosts(
        reservations=(reserved(8, A100, 4, 6),), maintenance=(MaintenanceInfo(3, *WINDOW),)
    )
    assert maintenance_effect(snapshot, 3, *WINDOW, NOW) == ReservationEffect((), (8,))


@pytest.mark.parametrize(
    ("others", "effect"),
    [((), ReservationEffect((7,), ())), ((reserved(5, H100, 4, 6),), ReservationEffect((), (7,)))],
)
def test_maintenance_moves_a_bound_reservation_or_breaks_it(
    others: tuple[ReservationInfo, ...], effect: ReservationEffect
) -> None:
    snapshot = three_hosts(reservations=(*others, reserved(7, H100, -1, 8, units=(10, 11))))
    assert maintenance_effect(snapshot, 1, *WINDOW, NOW) == effect


def test_units_are_kept_for_a_bound_reservation_that_maintenance_will_move() -> None:
    snapshot = three_hosts(
        reservations=(reserved(7, H100, -1, 8, units=(10, 11)),), maintenance=(MaintenanceInfo(1, *WINDOW),)
    )
    long, short = (
        QueuedWorkload(number, 1, 1, 1, 1, H100, NOW, hours * HOUR, hours * HOUR)
        for number, hours in ((50, 6), (51, 4))
    )
    assert not plan(replace(snapshot, queued=(long,)), NOW).placements
    assert [row.units for row in plan(replace(snapshot, queued=(short,)), NOW).placements] == [(20, 21)]
    assert plan(replace(snapshot, maintenance=(), queued=(long,)), NOW).placements

    def fits(start: int, end: int) -> bool:
        return check_reservation_window(
            snapshot, H100, 1, 1, NOW + start * HOUR, NOW + end * HOUR, NOW, may_exceed_guarantee=True
        ).fits

    assert fits(1, 5) and fits(8, 9) and not fits(1, 6)


def test_a_reservation_that_maintenance_will_move_stays_bound_until_then() -> None:
    snapshot = three_hosts(
        reservations=(reserved(7, H100, -1, 8, units=(10, 11)),), maintenance=(MaintenanceInfo(1, *WINDOW),)
    )
    planned = plan(snapshot, NOW)
    assert not planned.bindings and not planned.unbound


def test_reservations_that_nothing_can_serve_are_listed_with_the_reason() -> None:
    future, bound = reserved(7, A100, 4, 6), reserved(8, H100, -1, 8, units=(10, 11))
    rival, started = reserved(5, H100, 4, 8), reserved(10, A100, -1, 1)
    windows = tuple(MaintenanceInfo(host, *WINDOW) for host in (1, 3))
    snapshot = three_hosts(reservations=(rival, future, bound, started), maintenance=windows)
    found = {row.reservation: dict(row.numbers) for row in unserved_reservations(snapshot, 1, NOW)}
    assert set(found) == {7, 8}
    assert found[7] == {"closed": 2, "free": 0, "hosts": 1, "need": 2, "start": NOW + 4 * HOUR, "total": 2}
    assert found[8]["start"] == WINDOW[0] and found[8]["closed"] == 2 and found[8]["total"] == 4
    assert not unserved_reservations(replace(snapshot, maintenance=()), 1, NOW)
