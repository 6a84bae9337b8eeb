"""Settle ended allocations: compare their charges once with the facts of their end, and correct them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import F, Max, Sum

from scheduler.models import Allocation, WorkloadKind
from telemetry.core.charge_model import ChargeBucket, floor_to_second
from telemetry.core.charge_pieces import lost_time
from telemetry.models import Charge, ChargedUntil, SettledAllocation
from telemetry.money.correction_causes import allocation_cause
from telemetry.money.refund_limits import load_refund_limits
from telemetry.money.settlement import correct_gpu_charges
from telemetry.rollups.due_marks import mark_rollups_past_end
from telemetry.sql_values import Microseconds, array_text, time_of, time_or_none, unnested

# Limits of one run, so that a run ends within seconds if there is no backlog. A correction takes as long as a
# thousand comparisons.
ALLOCATIONS_AT_ONCE = 20_000
CORRECTIONS_PER_RUN = 500

_MARK_SETTLED_SQL = f"""
INSERT INTO {SettledAllocation._meta.db_table} (settled_at, allocation_id) SELECT %s, unnest(%s::bigint[])
ON CONFLICT DO NOTHING"""

_ENDED_SQL = f"""
SELECT id FROM scheduler_allocation AS allocation
WHERE id > %(last)s AND upper(period) IS NOT NULL AND NOT EXISTS (
    SELECT FROM {SettledAllocation._meta.db_table} AS settled
    WHERE settled.allocation_id = allocation.id AND settled.allocation_id > %(last)s)
ORDER BY id LIMIT %(count)s"""

SlotSeconds = dict[str, int]  # by bucket


@dataclass(frozen=True, slots=True)
class _EndedAllocation:
    """An ended allocation. ``lost`` is (start, bucket) of its lost part; None if no work was lost."""

    id: int
    gpu: int
    slots: int
    start: datetime
    end: datetime
    lost: tuple[datetime, ChargeBucket] | None

    def slot_seconds(self) -> SlotSeconds:
        """Return the slot-seconds that each bucket must have, if its host was never silent."""
        start, end = floor_to_second(self.start), floor_to_second(self.end)
        lost_from = end if self.lost is None else floor_to_second(self.lost[0])
        parts = {ChargeBucket.USED: lost_from - start}
        if self.lost is not None:
            parts[self.lost[1]] = end - lost_from
        return {
            bucket: self.slots * (length // timedelta(seconds=1))
            for bucket, length in parts.items()
            if length
        }


def settle_allocations(now: datetime) -> int:
    """Settle ended allocations. Return the number of reversed lines.

    Charges are wrong if work was lost, or if the end became known after the charge. Only charges whose sums
    differ from the facts are compared line by line, at most about CORRECTIONS_PER_RUN in one run.
    """
    corrected = compared = last = 0
    while compared < CORRECTIONS_PER_RUN:
        ids = _ended_after(last)
        waiting = _load_waiting(ids)
        mark_rollups_past_end({each.id: each.end for each in waiting}, now)
        charged = _charged_slot_seconds([each.id for each in waiting])
        differing = [each for each in waiting if charged.get(each.id, {}) != each.slot_seconds()]
        later = {each.id for each in differing[CORRECTIONS_PER_RUN:]}
        corrected += sum(_correct_charges(each, now) for each in differing[:CORRECTIONS_PER_RUN])
        compared += len(differing)
        _mark_settled([each.id for each in waiting if each.id not in later], now)
        if len(ids) < ALLOCATIONS_AT_ONCE:
            break
        last = ids[-1]
    return corrected


def _mark_settled(allocations: Collection[int], now: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_MARK_SETTLED_SQL, [now, array_text(allocations)])


def _ended_after(last: int) -> list[int]:
    """Return the ids of the next ended allocations after the id ``last`` that are not settled yet."""
    with connection.cursor() as cursor:
        cursor.execute(_ENDED_SQL, {"last": last, "count": ALLOCATIONS_AT_ONCE})
        return [pk for (pk,) in cursor.fetchall()]


def _load_waiting(ids: Collection[int]) -> list[_EndedAllocation]:
    """Return those of these ended allocations that are charged to their end, oldest first."""
    rows = (
        # The ids are found by a query of their own. In one query, the planner may expect that no allocation
        # is left to settle, and then compares each of them with each GPU.
        Allocation.objects.filter(pk__in=unnested(ids))
        # An allocation may end at a fraction of a second, but charges end at whole seconds. Allow for the
        # difference.
        .filter(unit__gpu__charged__until__gt=F("period__endswith") - timedelta(seconds=1))
        .order_by("pk")
        .values_list(
            "pk",
            "unit__gpu_id",
            "unit__gpu__pool_id",
            "slots__startswith",
            "slots__endswith",
            Microseconds("period__startswith"),
            Microseconds("period__endswith"),
            "end_code",
            Microseconds("run__checkpoint_at"),
            "workload__kind",
        )
    )
    found = list(rows)
    limits = load_refund_limits({row[2] for row in found})
    waiting = []
    for pk, gpu, pool, low, high, began, ended, end_code, checkpoint, kind in found:
        start, end = time_of(began), time_of(ended)
        lost = lost_time(
            end_code=end_code,
            started=start,
            ended=end,
            checkpoint=time_or_none(checkpoint),
            keeps_state=kind == WorkloadKind.NOTEBOOK,
            forgiven=limits.at(pool, end),
        )
        waiting.append(_EndedAllocation(pk, gpu, high - low, start, end, lost))
    return waiting


def _charged_slot_seconds(allocations: Collection[int]) -> dict[int, SlotSeconds]:
    """Return the charged slot-seconds after reversals, by allocation id and bucket, without zeros."""
    rows = Charge.objects.filter(allocation__in=unnested(allocations)).values_list("allocation", "bucket")
    found: dict[int, SlotSeconds] = defaultdict(dict)
    for allocation, bucket, total in rows.annotate(total=Sum("slot_seconds")).order_by():
        if total:
            found[allocation][bucket] = total
    return found


def _correct_charges(ended: _EndedAllocation, now: datetime) -> int:
    """Compare each charge line of an allocation with the facts. Return the number of reversed lines."""
    allocation = Allocation.objects.select_related("workload").get(pk=ended.id)
    lines = Charge.objects.filter(allocation=ended.id, reversal=False)
    last = lines.aggregate(last=Max("end"))["last"] or allocation.period.upper
    begin = ChargedUntil.objects.get(gpu=ended.gpu).since
    return correct_gpu_charges(
        ended.gpu,
        max(begin, allocation.period.lower),
        max(allocation.period.upper, last),
        now,
        allocation_cause(allocation, ended.lost),
    )
