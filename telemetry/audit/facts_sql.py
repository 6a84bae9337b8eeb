"""Compute in SQL how the facts divide the time of each GPU into buckets.

``FACTS_SQL`` is a list of common table expressions. Times are whole seconds since 1970 (UTC), rounded down. A
day is the number of days since 1970; ``calendar`` has its start and end. Slots are numbered across all GPUs.
Each GPU has 840 slots.

Each row of ``expected`` adds ``n`` slots to a key during ``[s, e)``. The key is the GPU, the day, the bucket,
the allocation and the reservation. At any time, the sum of ``n`` is the number of slots of this key. A row
with a negative ``n`` subtracts slots that another row adds. So no query has to process the events in order of
time.

Parameters: ``start`` and ``end`` (the month), ``first`` (start of the first audited day), ``over`` (True if
the month is over), ``month``, ``low_gpu`` and ``high_gpu`` (the first and the last GPU). The rules for lost
work are ``preemption_codes``, ``hardware_codes`` and ``forgiven_minutes``.
"""

from __future__ import annotations

NEVER = 1 << 40  # seconds since 1970; later than any fact
DAY = 86_400  # seconds of a day in UTC


def seconds(moment: str) -> str:
    """Return SQL for the whole seconds since 1970 of a timestamptz."""
    return f"floor(extract(epoch FROM {moment}))::bigint"


FACTS_SQL = f"""
gpus AS MATERIALIZED (
    SELECT gpu.id AS gpu, gpu.host_id AS host, gpu.pool_id AS pool, gpu.model,
        CASE WHEN pool.kind = 'static' THEN pool.team_id END AS owner,
        {seconds("gpu.created_at")} AS since,
        least({seconds("gpu.retired_at")}, CASE WHEN %(over)s THEN {seconds("%(end)s::timestamptz")} ELSE
            (SELECT coalesce(max({seconds('line."end"')}), {seconds("%(start)s::timestamptz")})
             FROM telemetry_charge AS line
             WHERE line.gpu_id = gpu.id AND line.start >= %(start)s AND line.start < %(end)s) END) AS until
    FROM scheduler_gpu AS gpu JOIN scheduler_pool AS pool ON pool.id = gpu.pool_id
    WHERE gpu.id BETWEEN %(low_gpu)s AND %(high_gpu)s
),
-- The audited days of each GPU: the days of the month, and earlier days that this month's statement corrects.
day_numbers AS (
    SELECT gpu, day FROM gpus CROSS JOIN calendar WHERE month = %(month)s
    UNION
    SELECT gpu_id, day - date '1970-01-01' FROM telemetry_charge
    WHERE month = %(month)s AND start >= %(first)s AND start < %(start)s
      AND gpu_id BETWEEN %(low_gpu)s AND %(high_gpu)s
),
days AS MATERIALIZED (
    SELECT gpus.gpu, day, day_low, day_high, greatest(since, day_low) AS low, least(until, day_high) AS high
    FROM day_numbers JOIN gpus USING (gpu) JOIN calendar USING (day)
),
allocations AS MATERIALIZED (
    SELECT allocation.id, allocation.slots, allocation.period, allocation.end_code, allocation.reservation_id,
        allocation.run_id, allocation.workload_id, allocation.project_id, gpus.gpu, gpus.pool
    FROM scheduler_allocation AS allocation
    JOIN scheduler_unit AS unit ON unit.id = allocation.unit_id
    JOIN gpus ON gpus.gpu = unit.gpu_id
    WHERE unit.gpu_id BETWEEN %(low_gpu)s AND %(high_gpu)s
      AND allocation.slots && int8range(%(low_gpu)s * 840, (%(high_gpu)s + 1) * 840)
      AND allocation.period && tstzrange(%(first)s, %(end)s)
),
-- The ids are constants, so that indexes find the rows. A join would read all runs and workloads.
runs AS MATERIALIZED (
    SELECT id, checkpoint_at FROM scheduler_run WHERE id = ANY(ARRAY(SELECT run_id FROM allocations))
),
workloads AS MATERIALIZED (
    SELECT id, kind, type, simulated, priority, owner_id FROM scheduler_workload
    WHERE id = ANY(ARRAY(SELECT workload_id FROM allocations))
),
holds AS MATERIALIZED (
    SELECT allocation.id AS allocation, allocation.gpu, coalesce(allocation.reservation_id, 0) AS reservation,
        lower(allocation.slots) AS first_slot, upper(allocation.slots) AS last_slot,
        {seconds("lower(allocation.period)")} AS s,
        coalesce({seconds("upper(allocation.period)")}, {NEVER}) AS e,
        lost.bucket AS lost_bucket, {seconds("lost.since")} AS lost_from,
        allocation.workload_id AS workload, workload.type AS workload_type, workload.simulated,
        workload.priority, workload.owner_id AS person, project.id AS project, project.team_id AS team
    FROM allocations AS allocation
    JOIN runs AS run ON run.id = allocation.run_id
    JOIN workloads AS workload ON workload.id = allocation.workload_id
    JOIN scheduler_project AS project ON project.id = allocation.project_id
    -- The work since the last checkpoint is lost. Without a checkpoint, all work of the hold is lost. The
    -- pool's refund limit at the end bounds the time that is not charged. -1 stands for no limit.
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN workload.kind = 'notebook' THEN NULL
            WHEN allocation.end_code = ANY(%(preemption_codes)s) THEN 'preempted'
            WHEN allocation.end_code = ANY(%(hardware_codes)s) THEN 'hardware_lost' END AS bucket,
            greatest(run.checkpoint_at, lower(allocation.period), upper(allocation.period) - make_interval(
                mins => nullif(coalesce((SELECT coalesce(forgiven_minutes, -1) FROM telemetry_refundlimit
                    WHERE pool_id = allocation.pool AND valid_from <= upper(allocation.period)
                    ORDER BY valid_from DESC, id DESC LIMIT 1), %(forgiven_minutes)s), -1))) AS since
    ) AS found
    CROSS JOIN LATERAL (
        SELECT CASE WHEN found.since < upper(allocation.period) THEN found.bucket END AS bucket,
            CASE WHEN found.since < upper(allocation.period) AND found.bucket IS NOT NULL
            THEN found.since END AS since
    ) AS lost
),
hold_parts AS MATERIALIZED (
    SELECT gpu, part.bucket, allocation, reservation, first_slot, last_slot, part.s, part.e
    FROM holds CROSS JOIN LATERAL (VALUES ('used', s, least(e, lost_from)), (lost_bucket, lost_from,
        e)) AS part (bucket, s, e)
    WHERE part.s < part.e
),
-- The days that each part touches. Materialised: a join of parts and days by the GPU alone is far larger.
-- A local day begins less than a day before or after the day in UTC. So only few days are tried for a part.
hold_days AS MATERIALIZED (
    SELECT gpu, day, bucket, allocation, reservation, first_slot, last_slot, s, e
    FROM hold_parts
    CROSS JOIN LATERAL generate_series(
        greatest(s, {seconds("%(first)s::timestamptz")}) / {DAY} - 1,
        least(e, {seconds("%(end)s::timestamptz")}) / {DAY} + 1) AS day
    JOIN calendar USING (day) WHERE s < day_high AND e > day_low
),
held AS MATERIALIZED (
    SELECT gpu, day, bucket, allocation, reservation, first_slot, last_slot, greatest(s, low) AS s,
        least(e, high) AS e
    FROM hold_days JOIN days USING (gpu, day) WHERE s < high AND e > low AND low < high
),
bound AS MATERIALIZED (
    SELECT days.gpu, day, reservation_id AS reservation, lower(slots) AS first_slot,
        upper(slots) AS last_slot,
        greatest(period.s, low) AS s, least(period.e, high) AS e
    FROM scheduler_boundunit AS unit
    CROSS JOIN LATERAL (
        SELECT {seconds("lower(unit.period)")} AS s, coalesce({seconds("upper(unit.period)")}, {NEVER}) AS e
    ) AS period
    JOIN days ON days.gpu = lower(slots) / 840 AND period.s < high AND period.e > low AND low < high
    WHERE slots && int8range(%(low_gpu)s * 840, (%(high_gpu)s + 1) * 840)
      AND unit.period && tstzrange(%(first)s, %(end)s) AND period.s < period.e
),
held_and_bound AS (
    SELECT held.gpu, day, bound.reservation, greatest(held.s, bound.s) AS s, least(held.e, bound.e) AS e,
        least(held.last_slot, bound.last_slot) - greatest(held.first_slot, bound.first_slot) AS n
    FROM held JOIN bound USING (gpu, day)
    WHERE held.s < bound.e AND bound.s < held.e
      AND held.first_slot < bound.last_slot AND bound.first_slot < held.last_slot
),
-- Slots that no work holds: those of a reservation, and the others under reservation 0.
unheld AS MATERIALIZED (
    SELECT gpu, day, 0 AS reservation, low AS s, high AS e, 840 AS n FROM days WHERE low < high
    UNION ALL SELECT gpu, day, 0, s, e, first_slot - last_slot FROM held
    UNION ALL SELECT gpu, day, 0, s, e, first_slot - last_slot FROM bound
    UNION ALL SELECT gpu, day, 0, s, e, n FROM held_and_bound
    UNION ALL SELECT gpu, day, reservation, s, e, last_slot - first_slot FROM bound
    UNION ALL SELECT gpu, day, reservation, s, e, -n FROM held_and_bound
),
-- The condition of a GPU follows from the last states of its host and its own last repair state.
state_changes AS (
    SELECT gpu, at, 0 AS kind, change.id, lease_state, admin_state, repair_state,
        NULL::text AS gpu_repair_state
    FROM scheduler_hoststatechange AS change JOIN gpus ON gpus.host = change.host_id WHERE at < %(end)s
    UNION ALL
    SELECT gpu, at, 1, change.id, NULL, NULL, NULL, change.repair_state
    FROM scheduler_gpustatechange AS change JOIN gpus ON gpus.gpu = change.gpu_id WHERE at < %(end)s
),
numbered_changes AS (
    SELECT *, count(lease_state) OVER so_far AS host_change, count(gpu_repair_state) OVER so_far AS gpu_change
    FROM state_changes WINDOW so_far AS (PARTITION BY gpu ORDER BY at, kind, id ROWS UNBOUNDED PRECEDING)
),
states AS (
    SELECT gpu, {seconds("at")} AS s, kind, id,
        row_number() OVER (PARTITION BY gpu, {seconds("at")} ORDER BY at DESC, kind DESC,
            id DESC) AS from_last,
        coalesce(max(lease_state) OVER of_host, 'alive') AS lease,
        coalesce(max(admin_state) OVER of_host, 'in_service') AS admin,
        coalesce(max(repair_state) OVER of_host, 'well') AS repair,
        coalesce(max(gpu_repair_state) OVER of_gpu, 'well') AS gpu_repair
    FROM numbered_changes
    WINDOW of_host AS (PARTITION BY gpu, host_change), of_gpu AS (PARTITION BY gpu, gpu_change)
),
conditions AS (
    SELECT gpu, s, coalesce(lead(s) OVER (PARTITION BY gpu ORDER BY s), {NEVER}) AS e,
        CASE kind WHEN 0 THEN 'host state change ' ELSE 'GPU state change ' END || id AS fact,
        lease = 'silent' AND admin <> 'maintenance' AS silent,
        CASE
            WHEN admin = 'maintenance' THEN 'maintenance'
            WHEN lease = 'silent' OR repair <> 'well' OR gpu_repair NOT IN ('well',
                'reshaping') THEN 'unhealthy'
            WHEN admin <> 'in_service' OR gpu_repair = 'reshaping' THEN 'maintenance' END AS bucket
    FROM states WHERE from_last = 1
),
outages AS MATERIALIZED (
    SELECT * FROM conditions WHERE bucket IS NOT NULL AND e > {seconds("%(first)s::timestamptz")}
),
unheld_steps AS (
    SELECT gpu, day, reservation, at, sum(step.change) AS n
    FROM unheld CROSS JOIN LATERAL (VALUES (s, n), (e, -n)) AS step (at, change)
    WHERE gpu IN (SELECT gpu FROM outages)
    GROUP BY gpu, day, reservation, at
),
unheld_levels AS (
    SELECT gpu, day, reservation, at AS s, lead(at) OVER by_time AS e,
        sum(n) OVER by_time AS n FROM unheld_steps
    WINDOW by_time AS (PARTITION BY gpu, day, reservation ORDER BY at)
),
unheld_in_outage AS MATERIALIZED (
    SELECT level.gpu, day, reservation, bucket, greatest(level.s, outages.s) AS s, least(level.e,
        outages.e) AS e, n
    FROM unheld_levels AS level
    JOIN outages ON outages.gpu = level.gpu AND outages.s < level.e AND level.s < outages.e
    WHERE n <> 0
),
held_in_silence AS (
    SELECT held.gpu, day, allocation, reservation, greatest(held.s, outages.s) AS s,
        least(held.e, outages.e) AS e, last_slot - first_slot AS n
    FROM held JOIN outages ON outages.gpu = held.gpu AND silent AND held.s < outages.e AND outages.s < held.e
    WHERE held.bucket = 'used'
),
expected AS (
    SELECT gpu, day, bucket, allocation, reservation, s, e, last_slot - first_slot AS n FROM held
    UNION ALL SELECT gpu, day, 'used', allocation, reservation, s, e, -n FROM held_in_silence
    UNION ALL SELECT gpu, day, 'hardware_lost', allocation, reservation, s, e, n FROM held_in_silence
    UNION ALL
    SELECT gpu, day, bucket, 0, reservation, s, e, n FROM (
        SELECT gpu, day, reservation, s, e, n FROM unheld
        UNION ALL SELECT gpu, day, reservation, s, e, -n FROM unheld_in_outage
    ) AS free JOIN gpus USING (gpu) CROSS JOIN LATERAL (
        SELECT CASE WHEN reservation <> 0
            OR owner IS NOT NULL THEN 'reserved_unused' ELSE 'unallocated' END AS bucket
    ) AS of_free
    UNION ALL SELECT gpu, day, bucket, 0, 0, s, e, n FROM unheld_in_outage
)
"""
