"""Compute the weights by which the idle cost of a month is divided among teams.

The weights are whole numbers of slot-seconds. They are the guarantees of the month, or the charged use.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import date

from django.db.models import Sum

from scheduler.models import GuaranteeChange, Quota
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.core.guarantees import GuaranteeStep, guaranteed_slot_seconds
from telemetry.models import IdlePayer, StatementLine
from telemetry.money.billing_months import month_bounds

PoolModel = tuple[int, str]  # id of the pool, GPU model
IdleWeights = dict[PoolModel, dict[int, int]]  # weights by team id


def load_idle_weights(month: date, payer: str) -> IdleWeights:
    """Return the weights of each team that pays for idle time, by pool and model.

    ``payer`` is a value of IdlePayer. If the operator pays, nobody has a weight.
    """
    if payer == IdlePayer.GUARANTEE:
        return _guarantee_weights(month)
    return _use_weights(month) if payer == IdlePayer.USE else {}


def _guarantee_weights(month: date) -> IdleWeights:
    """Return the guarantee of each team, multiplied by the seconds of the month in which it was in force.

    In a month that is not over, the present guarantees count to the end of the month.
    """
    start, end = month_bounds(month)
    steps: dict[tuple[int, int, str], list[GuaranteeStep]] = defaultdict(list)
    changes = GuaranteeChange.objects.filter(at__gt=start).order_by("at", "pk")
    for team, pool, model, at, before, after in changes.values_list(
        "team_id", "pool_id", "model", "at", "slots_before", "slots_after"
    ):
        steps[team, pool, model].append(GuaranteeStep(at, before, after))
    present = {
        (team, pool, model): 0 if removed_at else slots
        for team, pool, model, slots, removed_at in Quota.with_removed.values_list(
            "team_id", "pool_id", "model", "guaranteed_slots", "removed_at"
        )
    }
    weights: IdleWeights = defaultdict(dict)
    for team, pool, model in sorted({*present, *steps}):
        key = (team, pool, model)
        weight = guaranteed_slot_seconds(present.get(key, 0), steps[key], start, end)
        if weight > 0:
            weights[pool, model][team] = weight
    return dict(weights)


def _use_weights(month: date) -> IdleWeights:
    """Return the charged slot-seconds of each team. Corrections of earlier months do not count."""
    lines = StatementLine.objects.filter(
        statement__month=month, bucket__in=CHARGED_BUCKETS, corrected_month=None, team__isnull=False
    )
    rows = lines.values_list("pool_id", "model", "team_id").annotate(total=Sum("slot_seconds"))
    weights: IdleWeights = defaultdict(dict)
    for pool, model, team, total in rows.order_by("pool_id", "model", "team_id"):
        if pool is not None and team is not None and total > 0:
            weights[pool, model][team] = total
    return dict(weights)
