"""Divide the idle time of a month among the teams that pay for it, in SQL, and compare with the ledger.

A team's weight is its guarantee times the seconds in which it was in force, or its charged slot-seconds. A
correction has the payer and the weights of the month that it corrects. Each day is divided by the largest
remainder; of equal remainders, the lowest id of a team comes first. A team's share is charged at cost to the
cost centre that pays the largest part of its charges on the statement.
"""

from __future__ import annotations

from telemetry.audit.calendar_sql import month_start

NEXT_MONTH = "(months.month + interval '1 month')::date"

# The months are those of ``telemetry.audit.cents_sql``.
IDLE_SHARES_SQL = f"""
WITH statement AS (
    SELECT id, currency FROM telemetry_statement AS s
    WHERE month = %(month)s AND NOT (state = 'closed' AND digest_format = 1)
        AND NOT (state = 'open' AND EXISTS (
            SELECT FROM telemetry_statementline AS l WHERE l.statement_id = s.id AND l.due))
),
idle AS MATERIALIZED (
    SELECT pool_id AS pool, model, date_trunc('month', day)::date AS month, day, sum(cost) AS cost,
        sum(slot_seconds) AS seconds
    FROM telemetry_charge
    WHERE month = %(month)s AND bucket = 'unallocated' AND team_id IS NULL AND EXISTS (SELECT FROM statement)
    GROUP BY 1, 2, 3, 4
),
payers AS MATERIALIZED (
    SELECT months.month, s.idle_payer AS payer, {month_start("months.month")} AS low,
        {month_start(NEXT_MONTH)} AS high
    FROM (SELECT DISTINCT month FROM idle) AS months
    JOIN telemetry_statement AS s ON s.month = months.month AND s.idle_payer <> 'operator'
),
steps AS (
    SELECT payers.month, low, high, team_id AS team, pool_id AS pool, model, date_trunc('second', at) AS at,
        slots_before, slots_after,
        row_number() OVER (PARTITION BY payers.month, team_id, pool_id, model ORDER BY g.at, g.id) AS place
    FROM payers JOIN scheduler_guaranteechange AS g ON g.at > low WHERE payer = 'guarantee'
),
present AS (
    SELECT month, low, high, team_id AS team, pool_id AS pool, model, sum(slots) AS slots
    FROM payers CROSS JOIN (
        SELECT team_id, pool_id, model, CASE WHEN removed_at IS NULL THEN guaranteed_slots ELSE 0 END AS slots
        FROM scheduler_quota
        UNION ALL SELECT team_id, pool_id, model, 0 FROM scheduler_guaranteechange
    ) AS quotas
    WHERE payer = 'guarantee' GROUP BY 1, 2, 3, 4, 5, 6
),
levels AS (
    SELECT month, high, team, pool, model, present.low AS since, coalesce(slots_before, slots) AS slots,
        0::bigint AS place
    FROM present LEFT JOIN (SELECT month, team, pool, model, slots_before FROM steps WHERE place = 1) AS first
        USING (month, team, pool, model)
    UNION ALL
    SELECT month, high, team, pool, model, greatest(at, low), slots_after, place FROM steps WHERE at < high
),
weights AS MATERIALIZED (
    SELECT month, team, pool, model, sum(slots * seconds) AS weight
    FROM (
        SELECT month, team, pool, model, slots, extract(epoch FROM coalesce(
            lead(since) OVER (PARTITION BY month, team, pool, model ORDER BY place), high) - since) AS seconds
        FROM levels
    ) AS spans
    GROUP BY 1, 2, 3, 4 HAVING sum(slots * seconds) > 0
    UNION ALL
    SELECT payers.month, team_id, pool_id, model, sum(slot_seconds)
    FROM payers JOIN telemetry_charge AS c ON c.month = payers.month
    WHERE payer = 'use' AND bucket IN ('used', 'reserved_unused') AND team_id IS NOT NULL
        AND day >= payers.month
    GROUP BY 1, 2, 3, 4 HAVING sum(slot_seconds) > 0
),
parts AS (
    SELECT pool, model, month, day, team, field, amount, abs(amount) * weight AS product,
        sum(weight) OVER of_day AS whole
    FROM idle JOIN weights USING (month, pool, model)
    CROSS JOIN LATERAL (VALUES ('cost', cost * 1000000), ('slot-seconds', seconds)) AS value (field, amount)
    WINDOW of_day AS (PARTITION BY pool, model, month, day, field)
),
shares AS (
    SELECT pool, model, month, day, team, field, sign(amount) * (div(product, whole) + (
            row_number() OVER (of_day ORDER BY mod(product, whole) DESC, team)
            <= abs(amount) - sum(div(product, whole)) OVER of_day)::int) AS wanted
    FROM parts WINDOW of_day AS (PARTITION BY pool, model, month, day, field)
),
centres AS (
    SELECT DISTINCT ON (team_id) team_id AS team, cost_centre
    FROM (
        SELECT c.team_id, c.cost_centre, sum(c.charged) AS charged
        FROM telemetry_charge AS c JOIN statement ON true
        LEFT JOIN telemetry_statement AS corrected ON corrected.month = date_trunc('month', c.day)::date
            AND corrected.month <> c.month
        WHERE c.month = %(month)s AND c.team_id IS NOT NULL
            AND coalesce(nullif(corrected.currency, ''), statement.currency) = statement.currency
        GROUP BY 1, 2
    ) AS sums
    ORDER BY team_id, charged DESC, cost_centre COLLATE "C"
),
lines AS MATERIALIZED (
    SELECT l.id, l.pool_id AS pool, l.model, coalesce(l.corrected_month, %(month)s) AS month,
        coalesce(l.team_id, 0) AS team, l.cost_centre, l.idle_share, l.shared_out
    FROM telemetry_statementline AS l JOIN statement ON statement.id = l.statement_id
    WHERE l.bucket = 'unallocated'
),
found AS (
    SELECT pool, lines.model, month, day, team, cost_centre, value.*
    FROM lines JOIN telemetry_chargecell AS cell ON cell.line_id = lines.id AND idle_share
    CROSS JOIN LATERAL (VALUES
        ('cost', cell.cost * 1000000), ('charged', cell.charged * 1000000),
        ('slot-seconds', cell.slot_seconds)
    ) AS value (field, found)
),
wanted AS (
    SELECT pool, model, month, day, team, coalesce(centres.cost_centre, '') AS cost_centre, field, wanted
    FROM (
        SELECT * FROM shares
        UNION ALL
        SELECT pool, model, month, day, team, 'charged', wanted FROM shares WHERE field = 'cost'
    ) AS every_share LEFT JOIN centres USING (team)
)
SELECT 'share of idle time of team ' || team || ', pool ' || pool || ', ' || model || ', ' || day
        || ', ' || cost_centre, field, scaled.found::text, scaled.wanted::text
FROM found FULL JOIN wanted USING (pool, model, month, day, team, cost_centre, field)
CROSS JOIN LATERAL (
    SELECT CASE field WHEN 'slot-seconds' THEN 1 ELSE 0.000001 END AS unit
) AS units
CROSS JOIN LATERAL (
    SELECT trim_scale(coalesce(found, 0) * unit) AS found, trim_scale(coalesce(wanted, 0) * unit) AS wanted
) AS scaled
WHERE scaled.found <> scaled.wanted
UNION ALL
SELECT 'statement line ' || id, 'shared out', shared_out::text, is_wanted::text
FROM lines CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM weights AS w WHERE w.month = lines.month AND w.pool = lines.pool
        AND w.model = lines.model) AS is_wanted
) AS shared
WHERE NOT idle_share AND team = 0 AND shared_out <> is_wanted
ORDER BY 1, 2
"""
