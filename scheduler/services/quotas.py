"""Change the quotas of teams. A change may not raise the sum of guarantees above the pool's capacity."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Sum

from scheduler.coordination import locks
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR, SLOTS_PER_GPU
from scheduler.models import Gpu, Pool, Quota, Team
from scheduler.services import quota_hours
from scheduler.services.guarantee_history import record_guarantee_change
from scheduler.services.removed_rows import reject_if_pool_removed, reject_if_team_removed
from scheduler.state import nudge


@dataclass(frozen=True, slots=True)
class GuaranteeCapacity:
    """The slots of one GPU model in a pool (``capacity``), and the slots guaranteed to other teams."""

    capacity: int
    others: int

    @property
    def most(self) -> int:
        """Return the highest guarantee (slots) that the team can have."""
        return max(0, self.capacity - self.others)


def guarantee_capacity(*, pool: Pool, model: str, team: Team) -> GuaranteeCapacity:
    """Return the capacity that can be guaranteed to ``team``.

    GPUs in repair count, because they will return to service.
    """
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
    """Set a team's quota for one model of one pool. The quota applies from the next cycle on.

    ``gpu_hours`` is the number of GPU-hours that the guarantee covers in each ``period``. None means no
    limit. When the GPU-hours are used up, ``when_used_up`` decides whether the team's new work may still
    borrow or may not start.

    Return False and change nothing if the sum of all guarantees would exceed the pool's capacity
    (``guarantee_capacity`` returns the numbers). Raises OperationRejected ``pool_is_removed`` or
    ``team_is_removed``.
    """
    locks.pools([pool.pk])
    reject_if_pool_removed(pool)
    reject_if_team_removed(team)
    if guaranteed_slots > guarantee_capacity(pool=pool, model=model, team=team).most:
        return False
    before = Quota.objects.filter(team=team, pool=pool, model=model).first()
    record_guarantee_change(
        team=team,
        pool=pool,
        model=model,
        slots_before=before.guaranteed_slots if before else 0,
        slots_after=guaranteed_slots,
        now=now,
    )
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
    if gpu_hours is not None:
        # Count the hours at once. Otherwise a team that has already used more than its new limit could start
        # more work until the next count.
        quota_hours.count_quota_hours(now, quota)
    nudge.engine()
    nudge.pages(nudge.QUEUE)
    return True
