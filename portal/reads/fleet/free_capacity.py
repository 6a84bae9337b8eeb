"""Read free capacity by model, for the home page and the request form."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import Count

from portal import policy
from portal.models import User
from portal.reads.money import cost_totals
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Pool, Unit
from scheduler.reads import capacity as engine


@dataclass(frozen=True)
class FreeCapacity:
    """Free units of one model or MIG profile in one pool.

    ``price`` is the price of one unit for one hour; None if it is unknown. ``slots`` is the size of one unit:
    a whole GPU has 840 slots.
    """

    pool: Pool
    model: str
    profile: str
    total: int
    free: int
    free_on_one_host: int
    slots: int
    memory_mib: int
    price: Decimal | None


def free_capacity(user: User, now: datetime, card: cost_totals.Prices | None = None) -> list[FreeCapacity]:
    """Return one line for each model and MIG profile in the pools that the person may use.

    A model without free units has a line, too. Takes two queries. If ``card`` is None, it also reads the
    prices.
    """
    pools = {pool.pk: pool for pool in policy.visible_pools(user).order_by("name")}
    rows = (
        Unit.objects.filter(gpu__host__pool__in=pools, retired_at=None, gpu__retired_at=None)
        .values_list("gpu__host__pool_id", "gpu__model", "profile", "gpu__host_id", "memory_mib", "slots")
        .annotate(total=Count("pk"), free=Count("pk", filter=engine.free_unit_filter(now)))
        .order_by()
    )
    sums: dict[tuple[int, str, str], dict[str, int]] = {}
    by_host: dict[tuple[int, str, str], dict[int, int]] = {}
    for pool, model, profile, host, memory, slots, total, free in rows:
        key = (pool, model, profile)
        line = sums.setdefault(
            key, {"total": 0, "free": 0, "slots": slots.upper - slots.lower, "memory": memory}
        )
        line["total"] += total
        line["free"] += free
        hosts = by_host.setdefault(key, {})
        hosts[host] = hosts.get(host, 0) + free
    card = card or cost_totals.prices(now)
    lines = [
        FreeCapacity(
            pool=pools[pool],
            model=model,
            profile=profile,
            total=line["total"],
            free=line["free"],
            free_on_one_host=max(by_host[pool, model, profile].values()),
            slots=line["slots"],
            memory_mib=line["memory"],
            price=cost_totals.rounded_sum([card.of(pool, model, line["slots"])], card.currency),
        )
        for (pool, model, profile), line in sums.items()
    ]
    return sorted(lines, key=_sort_key)


def free_slots_by_model(pool: Pool, now: datetime) -> dict[str, int]:
    """Return the number of free slots of each model, counting only MIG slices and shares of GPUs.

    Free whole GPUs do not count. Takes one query.
    """
    sums: dict[str, int] = {}
    for model, slots in engine.free_units(pool, now).values_list("gpu__model", "slots"):
        width = slots.upper - slots.lower
        if width < SLOTS_PER_GPU:
            sums[model] = sums.get(model, 0) + width
    return sums


def _sort_key(line: FreeCapacity) -> tuple[bool, str, bool, Decimal, str, str]:
    """Return a sort key: shared pools come first.

    In a pool, whole GPUs come before slices. Expensive models come before cheap models.
    """
    return (
        line.pool.team_id is not None,
        line.pool.name,
        bool(line.profile),
        -(line.price or Decimal(0)),
        line.model,
        line.profile,
    )
