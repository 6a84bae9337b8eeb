"""Reservations kept: units are bound at the start, and who borrows them is told to go in time. One that has begun and can't be
bound says why."""

from __future__ import annotations

import numpy as np

from scheduler.core.board import NOBODY, Board
from scheduler.core.fairshare import Coming
from scheduler.core.model import Eviction, PoolKind, Reservation, Unbound
from scheduler.core.reasons import Code
from scheduler.core.timeline import Promises, cheapest_units, lead_seconds, numbers


def keep_reservations(board: Board) -> Promises:
    """Bind what starts, warn who is in the way, and note on which units those still to come count."""
    promises = Promises(board)
    for reservation in sorted(board.reservations, key=lambda r: (r.start, r.id)):
        units = promises.witness.get(reservation.id)
        if units is None:
            if reservation.start <= board.now and not reservation.units:
                board.unbound.append(missing(board, promises, reservation))
            continue
        if reservation.start <= board.now and all(board.holder[u] == NOBODY and board.kept[u] == 0 for u in units):
            board.bind(reservation, units)
            continue
        if reservation.start - lead_seconds(board) <= board.now:
            units = promises.witness[reservation.id] = spare_holders(board, promises, reservation, units)
            warn_holders(board, reservation, units)
        board.promise(reservation, units)
        note_coming(board, reservation, units)
        if reservation.start <= board.now:
            board.unbound.append(in_use(board, reservation, units))
    return promises


def note_coming(board: Board, reservation: Reservation, units: list[int]) -> None:
    """Once it has its units they count against its team's guarantee, so what would still be there then has to leave room. Not
    where an operator let it exceed that."""
    if reservation.may_exceed_guarantee or board.pool.kind is PoolKind.STATIC:
        return
    taken: dict[str, int] = {}
    for unit in units:
        taken[board.model_of(unit)] = taken.get(board.model_of(unit), 0) + int(board.slots[unit])
    for model, slots in taken.items():
        row = Coming(reservation.start, reservation.end, slots, reservation.id)
        board.ledger.coming.setdefault((reservation.team, model), []).append(row)


def missing(board: Board, promises: Promises, reservation: Reservation) -> Unbound:
    """No choice of units would do until its end: some failed or were closed, or are held by work that must stay."""
    fitting = board.fitting(reservation.ask)
    free = promises.open_units(board.now, reservation.end) & fitting
    why = numbers(
        closed=int((fitting & ~board.in_service).sum()),
        free=int(free.sum()),
        hosts=reservation.ask.hosts,
        need=reservation.ask.total_units,
        total=int(fitting.sum()),
    )
    return Unbound(reservation.id, Code.RESERVED_UNITS_MISSING, why)


def in_use(board: Board, reservation: Reservation, units: list[int]) -> Unbound:
    """Its units are known, and somebody is on them: on the way out, or too young to be told so."""
    held = [u for u in units if board.holder[u] != NOBODY or board.kept[u] != 0]
    why = numbers(
        need=len(units),
        units=len(held),
        workloads=len({int(board.holder[u]) for u in held} - {NOBODY}),
        hosts=reservation.ask.hosts,
    )
    return Unbound(reservation.id, Code.RESERVED_UNITS_IN_USE, why)


def in_the_way(board: Board, reservation: Reservation, units: list[int]) -> list[int]:
    """The preemptible work that would still be on a reservation's units when it starts, and may be told to go."""
    found = []
    for victim in sorted({int(board.holder[u]) for u in units} - {NOBODY}):
        if board.evictable[victim] and board.running[victim].until > reservation.start:
            found.append(victim)
    return found


def spare_holders(board: Board, promises: Promises, reservation: Reservation, units: list[int]) -> list[int]:
    """Other units for a reservation, for which not all that are in its way need to go: what one leaves whole may be
    more than the reservation takes of it. Tried for the dearest first."""
    going = in_the_way(board, reservation, units)
    for victim in sorted(going, key=lambda v: (-int(board.cost[v]), v)):
        rest = [v for v in going if v != victim]
        stays = {int(board.holder[u]) for u in units} - set(going)
        mask = promises.open_units(max(reservation.start, board.now + lead_seconds(board)), reservation.end)
        mask &= np.isin(board.holder, [NOBODY, *rest]) & (board.kept == 0)
        mask[units] = [int(board.holder[u]) in stays | {*rest, NOBODY} for u in units]
        kind = int(board.kind[units[0]])
        found = cheapest_units(board, reservation.ask, kind, mask, np.zeros(len(board.units), dtype=np.int64))
        if found is not None:
            units, going = found, rest
    return units


def warn_holders(board: Board, reservation: Reservation, units: list[int]) -> None:
    """Evict the preemptible work that would still be on a reservation's units when it starts."""
    for victim in in_the_way(board, reservation, units):
        running = board.running[victim]
        board.evict(
            victim,
            Eviction(
                running.id,
                None,
                reservation.id,
                Code.EVICTED_FOR_RESERVATION,
                board.now + board.policy.notice_seconds,
                numbers(reservation=reservation.id, start=reservation.start, units=len(units)),
            ),
        )
