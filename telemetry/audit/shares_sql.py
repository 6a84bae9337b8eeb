"""Compare the cost centres and shares of charge lines with the splits, in SQL.

If several cost centres share a piece of time, each cost centre has a line for this piece.
"""

from __future__ import annotations

WHOLE = 10_000  # 100 % in hundredths of a percent
PIECE_COLUMNS = (
    'gpu, day, day_low, day_high, s, e, start, "end", slots, bucket, allocation, reservation, pool, model,'
    " workload, workload_type, simulated, team, project, person, price, priority_factor, type_factor,"
    " reversal, month, created_at"
)

# The cost centres that must pay, and their shares. If a payer has several splits with the same date, the
# newest split applies.
SHARES_SQL = f"""
splits AS (
    SELECT project, pool, valid_from, created_at, first_share, wanted,
        coalesce(lead(valid_from) OVER (PARTITION BY project, pool ORDER BY valid_from), 'infinity') AS until
    FROM (
        SELECT DISTINCT ON (project_id, pool_id, valid_from) coalesce(project_id, 0) AS project,
            coalesce(pool_id, 0) AS pool, valid_from, created_at, min(id) AS first_share,
            string_agg(code || CASE WHEN percent < 100 THEN ' ' || trim_scale(percent) || ' %%' ELSE '' END,
                ', ' ORDER BY code COLLATE "C") AS wanted
        FROM telemetry_costcentreshare GROUP BY project_id, pool_id, valid_from, created_at
        ORDER BY project_id, pool_id, valid_from, created_at DESC
    ) AS newest
),
right_shares AS (
    SELECT splits.*, share.id AS share_id, share.code, (share.percent * 100)::bigint AS share
    FROM splits JOIN telemetry_costcentreshare AS share ON coalesce(share.project_id, 0) = splits.project
        AND coalesce(share.pool_id, 0) = splits.pool AND share.valid_from = splits.valid_from
        AND share.created_at = splits.created_at
),
paid_parts AS (
    SELECT line.id, line.id AS piece, line.cost_centre, {WHOLE}::bigint AS share, {WHOLE} AS whole_share,
        line.gpu, line.s, line.e, line.start, paying_project, paying_pool, 1::bigint AS times
    FROM owned_lines AS line WHERE NOT shared
    UNION ALL
    SELECT part.id, part.piece, part.cost_centre, part.share, whole_share, line.gpu, line.s, line.e,
        line.start, paying_project, paying_pool,
        count(*) OVER (PARTITION BY part.piece, part.cost_centre)
    FROM owned_lines AS line JOIN parts_of_pieces AS part ON part.piece = line.id WHERE shared
),
checked_parts AS (
    SELECT part.*, coalesce(splits.wanted, '') AS wanted, right_share.share_id, splits.first_share
    FROM paid_parts AS part
    LEFT JOIN splits ON splits.project = paying_project AND splits.pool = paying_pool
        AND splits.valid_from <= start AND start < splits.until
    LEFT JOIN right_shares AS right_share ON right_share.project = paying_project
        AND right_share.pool = paying_pool AND right_share.code = part.cost_centre
        AND right_share.share = part.share
        AND right_share.valid_from <= start AND start < right_share.until
),
-- Texts are made for wrong parts only: they take longer than the comparisons.
wrong_parts AS (
    SELECT *, share_id IS NULL AND (first_share IS NOT NULL OR cost_centre <> '' OR share <> {WHOLE})
        AS is_unwanted
    FROM checked_parts
    WHERE (share_id IS NULL AND (first_share IS NOT NULL OR cost_centre <> '' OR share <> {WHOLE}))
        OR times > 1 OR whole_share <> {WHOLE}
),
share_differences AS (
    SELECT 'owner', id, gpu, s, e, field, found, wrong.wanted,
        coalesce('cost centre share ' || first_share, 'project ' || nullif(paying_project, 0),
            'pool ' || nullif(paying_pool, 0), 'GPU ' || gpu)
    FROM wrong_parts
    CROSS JOIN LATERAL (
        SELECT cost_centre || CASE WHEN share < {WHOLE} THEN ' ' || trim_scale(share / 100.0) || ' %%'
            ELSE '' END AS shown
    ) AS part
    CROSS JOIN LATERAL (VALUES
        ('cost centre', shown, wanted, is_unwanted),
        ('cost centre', shown || ' ' || times || ' times', wanted, times > 1),
        ('share', trim_scale(whole_share / 100.0) || ' %%', '100 %%', whole_share <> {WHOLE} AND id = piece)
    ) AS wrong (field, found, wanted, is_wrong)
    WHERE is_wrong
),
split_values AS (
    SELECT part.id, part.piece, part.gpu, part.s, part.e, part.cost_centre, value.*,
        whole * part.share / {WHOLE} AS floored, mod(whole * part.share, {WHOLE}) AS rest
    FROM parts_of_pieces AS part JOIN standing AS line ON line.id = part.piece AND part.whole_share = {WHOLE}
    CROSS JOIN LATERAL (VALUES
        ('slot-seconds', part.slot_seconds, line.slot_seconds),
        ('cost', part.cost, line.cost),
        ('charged', part.charged, line.charged)
    ) AS value (field, found, whole)
),
split_ranks AS (
    SELECT *, floored + (row_number() OVER (of_piece ORDER BY rest DESC, cost_centre COLLATE "C")
        <= whole - sum(floored) OVER of_piece)::int AS wanted
    FROM split_values WINDOW of_piece AS (PARTITION BY piece, field)
),
split_differences AS (
    SELECT 'amount', id, gpu, s, e, field, shown.found, shown.wanted, 'line ' || piece
    FROM split_ranks CROSS JOIN LATERAL (
        SELECT CASE field WHEN 'slot-seconds' THEN split_ranks.found::text
                ELSE (split_ranks.found / 1000000.0)::numeric(18, 6)::text END AS found,
            CASE field WHEN 'slot-seconds' THEN split_ranks.wanted::text
                ELSE (split_ranks.wanted / 1000000.0)::numeric(18, 6)::text END AS wanted
    ) AS shown
    WHERE split_ranks.found <> split_ranks.wanted
)
"""
