"""Return the events that changed the use or the capacity of pools in a period, from existing rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

# A state that began more than this before the start of the period is not an event of the period.
LONGEST_STATE = timedelta(days=30)
MAX_EVENTS = 200
EVENT_KINDS = ("price", "maintenance", "drain", "gap", "month", "size")
_EVENTS_SQL = """
WITH chosen AS (
    SELECT id, name, pool_id FROM scheduler_host WHERE pool_id = ANY(%(pools)s::bigint[])
), states AS (
    SELECT change.host_id, change.admin_state, change.at,
        lead(change.at) OVER (PARTITION BY change.host_id ORDER BY change.at, change.id) AS until,
        lag(change.admin_state) OVER (PARTITION BY change.host_id ORDER BY change.at, change.id) AS before
    FROM scheduler_hoststatechange AS change JOIN chosen ON chosen.id = change.host_id
    WHERE change.at >= %(start)s - %(longest)s AND change.at < %(end)s
)
SELECT 'price', price.valid_from, NULL::timestamptz, price.model, coalesce(pool.name, ''),
    price.price_per_gpu_hour::text, 1
FROM telemetry_price AS price LEFT JOIN scheduler_pool AS pool ON pool.id = price.pool_id
WHERE price.valid_from >= %(start)s AND price.valid_from < %(end)s AND price.currency = %(currency)s
    AND (price.pool_id IS NULL OR price.pool_id = ANY(%(pools)s::bigint[]))
    AND (%(model)s = '' OR price.model = %(model)s)
UNION ALL
SELECT 'maintenance', period.start, period."end", chosen.name, '', '', 1
FROM scheduler_maintenancewindow AS period JOIN chosen ON chosen.id = period.host_id
WHERE period.start < %(end)s AND period."end" > %(start)s
UNION ALL
SELECT 'drain', states.at, states.until, chosen.name, '', '', 1
FROM states JOIN chosen ON chosen.id = states.host_id
WHERE states.admin_state = 'draining' AND states.before IS DISTINCT FROM 'draining'
    AND coalesce(states.until, %(end)s) > %(start)s
UNION ALL
SELECT 'gap', date_trunc('minute', gap.start), max(gap."end"), min(chosen.name), gap.cause, '', count(*)
FROM telemetry_samplegap AS gap JOIN chosen ON chosen.id = gap.host_id
WHERE gap.start < %(end)s AND gap."end" > %(start)s AND gap."end" >= gap.start + interval '1 minute'
GROUP BY 2, gap.cause
UNION ALL
SELECT 'month', closed_at, NULL, to_char(month, 'YYYY-MM'), '', '', 1 FROM telemetry_statement
WHERE %(months)s AND closed_at >= %(start)s AND closed_at < %(end)s AND state = 'closed'
UNION ALL
SELECT 'size', date_trunc('hour', change.at), NULL, pool.name, change.model,
    to_char(sum(change.gpus), 'FMSG999999'), abs(sum(change.gpus))
FROM (
    SELECT pool_id, model, created_at AS at, 1 AS gpus FROM scheduler_gpu
    WHERE created_at >= %(start)s AND created_at < %(end)s
    UNION ALL
    SELECT pool_id, model, retired_at, -1 FROM scheduler_gpu
    WHERE retired_at >= %(start)s AND retired_at < %(end)s
) AS change JOIN scheduler_pool AS pool ON pool.id = change.pool_id
WHERE change.pool_id = ANY(%(pools)s::bigint[]) AND (%(model)s = '' OR change.model = %(model)s)
GROUP BY 2, pool.name, change.model HAVING sum(change.gpus) <> 0
ORDER BY 2, 1, 4 LIMIT %(most)s
"""


@dataclass(frozen=True)
class UseEvent:
    """A change in a period. ``kind`` is one of EVENT_KINDS; ``end`` is None for a point in time.

    ``subject`` is the GPU model of a price, the pool of a change of size, or a host or a month. ``detail`` is
    the pool of a price, the cause of a gap, or the GPU model of a change of size. ``value`` is the price, or
    the signed change of the number of GPUs. ``count`` is the number of hosts of a gap.
    """

    kind: str
    start: datetime
    end: datetime | None
    subject: str
    detail: str = ""
    value: str = ""
    count: int = field(default=1)


def use_events(
    start: datetime,
    end: datetime,
    *,
    pools: Collection[int],
    model: str = "",
    currency: str = "",
    with_months: bool = False,
) -> list[UseEvent]:
    """Return the events of the pools that touch ``[start, end)``, in order of their start. Runs one query."""
    values: dict[str, Any] = {
        "start": start,
        "end": end,
        "pools": list(pools),
        "model": model,
        "currency": currency,
        "months": with_months,
        "longest": LONGEST_STATE,
        "most": MAX_EVENTS,
    }
    with connection.cursor() as cursor:
        cursor.execute(_EVENTS_SQL, values)
        return [UseEvent(*row) for row in cursor.fetchall()]
