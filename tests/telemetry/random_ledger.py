"""Write a random month of facts and charge it in steps, as a site would.

Some facts arrive late: ends of work and states of hosts that lie in time which is already charged.
"""

from __future__ import annotations

import datetime as dt
import random

from scheduler.models import Allocation, GpuStateChange, Unit
from telemetry.core.charge_model import HARDWARE_FAULT_END_CODES, PREEMPTION_END_CODES
from telemetry.money.billing_months import billing_calendar
from telemetry.money.charges import charge_all_gpus
from tests.telemetry.rows import (
    end_hold,
    hold,
    host_state,
    price,
    price_factor,
    reservation,
    split,
    workload,
)
from tests.world import A100, H100, World, units_of

END_CODES = ("finished", "failed", *sorted(PREEMPTION_END_CODES), *sorted(HARDWARE_FAULT_END_CODES))
HOST_STATES = (
    {"lease": "silent"},
    {"lease": "silent", "admin": "maintenance"},
    {"admin": "maintenance"},
    {"admin": "cordoned"},
    {"admin": "draining"},
    {"repair": "quarantined"},
    {},
    {},
)


class RandomLedger:
    """The facts of a world, written step by step. ``dice`` decides everything.

    Prices are in ``currency``. Without ``charged``, the same facts are written and nothing is charged. No
    split begins before ``closed_until``, the end of the last closed month.
    """

    def __init__(
        self, world: World, dice: random.Random, currency: str = "EUR", *, charged: bool = True
    ) -> None:
        self.world = world
        self.dice = dice
        self.currency = currency
        self.charged = charged
        self.closed_until = self.reached = world.now
        self.splits_begin_with_days = False
        self.open: list[Allocation] = []
        self.free_from: dict[int, dt.datetime] = {}
        hosts = world.hosts
        self.units: list[Unit] = [
            *units_of(hosts["alpha"])[:3],
            *units_of(hosts["beta"])[:2],
            *units_of(hosts["gamma"], "1g.5gb")[:4],
            *units_of(hosts["delta"])[:2],
        ]

    def charge_until(self, end: dt.datetime, steps: int) -> None:
        """Write the next facts and charge them in ``steps`` runs, the last of them at ``end``."""
        start = self.reached
        seconds = int((end - start).total_seconds())
        moments = sorted(self.dice.sample(range(3600, seconds), steps - 1))
        for moment in [*(start + dt.timedelta(seconds=second) for second in moments), end]:
            self.step(self.reached, moment)
            self.reached = moment

    def step(self, before: dt.datetime, now: dt.datetime) -> None:
        """Write random facts of ``[before, now)`` and a few late ones, then charge at ``now``."""
        self._end_work(before, now)
        for unit in self.units:
            if self.dice.random() < 0.6:
                self._start_work(unit, before, now)
        if self.dice.random() < 0.5:
            self._reserve(before, now)
        self._change_states(before, now)
        if self.dice.random() < 0.6:
            self._transfer(now)
        if self.charged:
            charge_all_gpus(now)
        # Prices and their factors begin after the charged time.
        if self.dice.random() < 0.4:
            pool = self.dice.choice([None, self.world.shared])
            since = now + dt.timedelta(seconds=self.dice.randrange(1, 200_000))
            model = self.dice.choice([H100, A100])
            price(
                model,
                f"{self.dice.uniform(0.5, 4):.6f}",
                f"{self.dice.uniform(0.5, 9):.6f}",
                since=since,
                pool=pool,
                currency=self.currency,
            )
        if self.dice.random() < 0.4:
            price_factor(
                f"{self.dice.uniform(0.1, 3):.4f}",
                since=now + dt.timedelta(seconds=self.dice.randrange(1, 200_000)),
                pool=self.dice.choice([None, self.world.shared]),
                **self.dice.choice([{"priority": 1}, {"priority": 2}, {"workload_type": "training"}]),
            )

    def _transfer(self, now: dt.datetime) -> None:
        """Split a project or the static pool anew, mostly from a past time on."""
        length = int((now - self.world.now).total_seconds() * 1.3)
        since = self.world.now + dt.timedelta(seconds=self.dice.randrange(length))
        codes = self.dice.sample(range(9), self.dice.randrange(1, 4))
        cuts = sorted(self.dice.sample(range(1, 10_000), len(codes) - 1))
        parts = [high - low for low, high in zip([0, *cuts], [*cuts, 10_000], strict=True)]
        percents = {f"CC_{code}": f"{part / 100:.2f}" for code, part in zip(codes, parts, strict=True)}
        if self.splits_begin_with_days:
            since = billing_calendar().start_of_day(since)
        payer = self.dice.choice([*self.world.teams, self.world.static])
        split(payer, max(since, self.closed_until), now, **percents)

    def _moment(self, low: dt.datetime, high: dt.datetime) -> dt.datetime:
        return low + (high - low) * self.dice.random()

    def _start_work(self, unit: Unit, before: dt.datetime, now: dt.datetime) -> None:
        low = max(before, self.free_from.get(unit.pk, before))
        if low >= now or any(each.unit_id == unit.pk for each in self.open):
            return
        team = self.dice.choice(self.world.teams)
        kind = self.dice.choice(["job", "job", "notebook"])
        work = workload(self.world, team, kind=kind, priority=self.dice.choice([1, 1, 2]))
        self.open.append(hold(work, unit, self._moment(low, now)))
        if self.dice.random() < 0.5:
            self._end(self.open.pop(), self.open_start(unit), now)

    def open_start(self, unit: Unit) -> dt.datetime:
        """Return the start of the newest hold of ``unit``."""
        return Allocation.objects.filter(unit=unit).latest("pk").period.lower

    def _end_work(self, before: dt.datetime, now: dt.datetime) -> None:
        for allocation in list(self.open):
            if self.dice.random() < 0.6:
                self.open.remove(allocation)
                start = allocation.period.lower
                late = self.dice.random() < 0.3
                self._end(allocation, start if late else max(start, before), now)

    def _end(self, allocation: Allocation, low: dt.datetime, now: dt.datetime) -> None:
        end = self._moment(low, now) + dt.timedelta(microseconds=1)
        checkpoint = self._moment(allocation.period.lower, end) if self.dice.random() < 0.5 else None
        end_hold(allocation, end, self.dice.choice(END_CODES), checkpoint)
        self.free_from[allocation.unit_id] = end

    def _reserve(self, before: dt.datetime, now: dt.datetime) -> None:
        busy = {each.unit_id for each in self.open}
        free = [
            unit
            for unit in self.units
            if unit.gpu.pool_id == self.world.shared.pk
            and unit.pk not in busy
            and self.free_from.get(unit.pk, before) < now
        ]
        if len(free) < 2:
            return
        units = self.dice.sample(free, 2)
        low = max(before, *(self.free_from.get(unit.pk, before) for unit in units))
        start = self._moment(low, now)
        end = start + dt.timedelta(seconds=self.dice.randrange(600, 300_000))
        team = self.dice.choice(self.world.teams)
        booked = reservation(self.world, team, units, start, end)
        if self.dice.random() < 0.7:
            hold(
                workload(self.world, team),
                units[0],
                self._moment(start, end),
                end,
                end_code="finished",
                reservation=booked,
            )
        for unit in units:
            self.free_from[unit.pk] = end

    def _change_states(self, before: dt.datetime, now: dt.datetime) -> None:
        for _ in range(self.dice.randrange(3)):
            host = self.world.hosts[self.dice.choice(sorted(self.world.hosts))]
            late = self.dice.random() < 0.4
            low = max(self.world.now, before - dt.timedelta(days=3)) if late else before
            host_state(host, self._moment(low, now), **self.dice.choice(HOST_STATES))
        for _ in range(self.dice.randrange(3)):
            gpu = self.dice.choice(self.units).gpu
            repair = self.dice.choice(["well", "quarantined", "reshaping", "out"])
            GpuStateChange.objects.create(gpu=gpu, repair_state=repair, at=self._moment(before, now))
