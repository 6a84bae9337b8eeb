"""Guarantees. Their sum per pool and model never exceeds what the pool has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Sum

from scheduler.coordination import locks
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR, SLOTS_PER_GPU
from scheduler.models import Gpu, Pool, Quota, Team
from scheduler.services import quota_hours
from scheduler.state import nudge


@dataclass(frozen=True, slots=True)
class GuaranteeCapacity:
    """In slots: what a pool has of a model, and what teams other than the one asked for are guaranteed of it."""

    capacity: int
    others: int

    @property
    def most(self) -> int:
        """The highest guarantee the team can have."""
        return max(0, self.capacity - self.others)


def guarantee_capacity(*, pool: Pool, model: str, team: Team) -> GuaranteeCapacity:
    """What is left to guarantee to ``team``. GPUs in repair count: they are expected back."""
    capacity = (
        Gpu.objects.filter(host__pool=pool, model=model, retired_at__isnull=True).count() * SLOTS_PER_GPU
    )
    others = (
        Quota.objects.filter(pool=pool, model=model)
        .exclude(team=team)
        .aggregate(sum=Sum("guaranteed_slots"))["sum"]
    )
    return GuaranteeCapacity(capacity=capacity, others=others or 0)


@transaction.atomic
def change_quota(
    *,
    team: Team,
    pool: Pool,
    model: str,
    guaranteed_slots: int,
    borrow_limit_slots: int | None,
    now: datetime,
    gpu_hours: int | None = None,
    period: str = Quota.Period.MONTH,
    when_used_up: str = Quota.WhenUsedUp.BORROW,
) -> bool:
    """Set a team's claim on one model of one pool, from the next cycle on. False, and nothing changed, when all guarantees
    together would exceed the pool (``guarantee_capacity`` has the numbers). ``gpu_hours`` is what the guarantee is worth in a
    ``period``, None without end; once they are used the team only borrows, or starts nothing new, as ``when_used_up`` says."""
    locks.pools([pool.pk])
    if guaranteed_slots > guarantee_capacity(pool=pool, model=model, team=team).most:
        return False
    quota, _ = Quota.objects.update_or_create(
        team=team,
        pool=pool,
        model=model,
        defaults={
            "guaranteed_slots": guaranteed_slots,
            "borrow_limit_slots": borrow_limit_slots,
            "updated_at": now,
            "hours_slot_seconds": None if gpu_hours is None else gpu_hours * SLOT_SECONDS_PER_GPU_HOUR,
            "hours_period": period,
            "when_used_up": when_used_up,
            "hours_used_up": False,
            "hours_used": 0,
            "hours_until": None,
            "hours_counted_at": None,
        },
    )
    if (
        gpu_hours is not None
    ):  # what was used before the change counts at once, or a team that is over could start more
        quota_hours.count_quota_hours(now, quota)
    nudge.engine()
    nudge.pages(nudge.QUEUE)
    return True
