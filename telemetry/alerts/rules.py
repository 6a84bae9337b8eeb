"""Read and change the alert rules of pools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scheduler.models import Pool
from telemetry.core.alerts.kinds import ALERT_KINDS, THRESHOLD_FIELDS, AlertKind, AlertThresholds
from telemetry.models import AlertRule


class RulesInForce:
    """The rules of all pools. A pool without a rule of its own has the defaults of the kind."""

    def __init__(self, own: Mapping[tuple[int, str], AlertThresholds], pools: Iterable[int]) -> None:
        self._own = own
        self._pools = list(pools)

    def of(self, pool: int, kind: AlertKind) -> AlertThresholds:
        return self._own.get((pool, kind), ALERT_KINDS[kind].defaults)

    def is_own(self, pool: int, kind: AlertKind) -> bool:
        """Return True if operators changed the rule."""
        return (pool, kind) in self._own

    def lowest_begin(self, kind: AlertKind) -> float:
        """Return the lowest value at which an alert of any pool begins."""
        return min(
            (self.of(pool, kind).begin for pool in self._pools), default=ALERT_KINDS[kind].defaults.begin
        )

    def shortest_begin_minutes(self, kinds: Iterable[AlertKind]) -> int:
        """Return the shortest time after which an alert of one of the kinds begins in any pool."""
        return min((self.of(pool, kind).begin_minutes for kind in kinds for pool in self._pools), default=1)

    def longest_minutes(self, kind: AlertKind) -> int:
        """Return the longest window of a kind in any pool."""
        defaults = ALERT_KINDS[kind].defaults
        windows = [defaults.begin_minutes, defaults.end_minutes]
        for pool in self._pools:
            windows += [self.of(pool, kind).begin_minutes, self.of(pool, kind).end_minutes]
        return max(windows)


def rules_in_force() -> RulesInForce:
    """Return the rules of all pools. Runs two queries."""
    own = {(rule.pool_id, rule.kind): rule.thresholds for rule in AlertRule.objects.all()}
    return RulesInForce(own, Pool.objects.values_list("pk", flat=True))


def write_rule(pool: Pool, kind: AlertKind, values: Mapping[str, Any]) -> AlertRule:
    """Store the rule of a pool with the given values. The caller has checked them."""
    row, _ = AlertRule.objects.update_or_create(
        pool=pool, kind=kind, defaults={name: values[name] for name in THRESHOLD_FIELDS}
    )
    return row


def remove_rule(pool: Pool, kind: AlertKind) -> bool:
    """Restore the defaults of a kind in a pool. Return False if the pool has them."""
    return bool(AlertRule.objects.filter(pool=pool, kind=kind).delete()[0])
