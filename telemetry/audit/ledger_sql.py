"""Compare the lines of the ledger with the facts, in one SQL statement.

The statement returns one row for each difference: the check, the line (NULL if no line exists), the GPU, the
start and end in seconds since 1970, the field, the value in the ledger, the value by the facts, and the fact.

Amounts are integers here: millionths of the currency. A division is made in two steps, so that every product
stays below 2**63: ``T*w/W = (T/W)*w + (T mod W)*w/W``.
"""

from __future__ import annotations

from telemetry.audit.calendar_sql import CALENDAR_SQL
from telemetry.audit.facts_sql import FACTS_SQL, seconds
from telemetry.audit.shares_sql import PIECE_COLUMNS, SHARES_SQL, WHOLE


def value_since_price(moment: str, per_hour: str) -> str:
    """Return SQL for the value of a whole GPU from the start of the price until ``moment``.

    The value and ``per_hour`` are in millionths. The value is rounded to the nearest integer; a tie is
    rounded to the even integer.
    """
    hours, rest = f"(({moment} - since) / 3600)", f"(mod({moment} - since, 3600) * {per_hour})"
    whole = f"({hours} * {per_hour} + {rest} / 3600)"
    above_half, half = f"mod({rest}, 3600) > 1800", f"mod({rest}, 3600) = 1800"
    return f"({whole} + CASE WHEN {above_half} OR ({half} AND mod({whole}, 2) = 1) THEN 1 ELSE 0 END)"


def _span_value(per_hour: str) -> str:
    """Return SQL for the value of a whole GPU from ``low`` to ``high``."""
    return f"{value_since_price('high', per_hour)} - {value_since_price('low', per_hour)}"


LINES_SQL = f"""
line_rows AS MATERIALIZED (
    SELECT line.id, line.gpu_id AS gpu, days.day, day_low, day_high,
        {seconds("line.start")} AS s, {seconds('line."end"')} AS e,
        line.start, line."end", line.slots, line.slot_seconds, line.bucket,
        coalesce(line.allocation_id, 0) AS allocation, coalesce(line.reservation_id, 0) AS reservation,
        line.pool_id AS pool, line.model, line.workload_id AS workload, line.workload_type, line.simulated,
        line.team_id AS team, line.project_id AS project, line.user_id AS person, line.cost_centre,
        (line.share_percent * 100)::bigint AS share,
        line.price_id AS price, (line.cost * 1000000)::bigint AS cost,
            (line.charged * 1000000)::bigint AS charged,
        line.priority_factor_id AS priority_factor, line.type_factor_id AS type_factor,
        line.corrects_id AS corrects, line.reversal, line.month, line.created_at
    FROM telemetry_charge AS line
    -- A line with a wrong day is compared with that day. form_differences reports its day.
    JOIN days ON days.gpu = line.gpu_id AND days.day = line.day - date '1970-01-01'
    WHERE line.gpu_id BETWEEN %(low_gpu)s AND %(high_gpu)s AND line.start >= %(first)s
        AND line.start < %(end)s
),
-- A piece of time that several cost centres share has one line for each, with ids in a row. A share is in
-- hundredths of a percent, so the lines of a piece sum to {WHOLE}. The row of a piece has the id of its first
-- line.
numbered_parts AS (
    SELECT line.*, undoing.id IS NOT NULL AS undone,
        div(sum(line.share) OVER so_far - line.share, {WHOLE}) AS number
    FROM line_rows AS line
    LEFT JOIN line_rows AS undoing ON undoing.reversal AND undoing.corrects = line.id
    WHERE line.share < {WHOLE}
    WINDOW so_far AS (PARTITION BY line.gpu, line.s, line.e, line.slots, line.bucket, line.allocation,
        line.reservation, line.created_at, line.reversal ORDER BY line.id ROWS UNBOUNDED PRECEDING)
),
parts_of_pieces AS MATERIALIZED (
    SELECT *, min(id) OVER of_piece AS piece, sum(share) OVER of_piece AS whole_share
    FROM numbered_parts
    WINDOW of_piece AS (PARTITION BY {PIECE_COLUMNS}, number, undone)
),
lines AS MATERIALIZED (
    SELECT id, {PIECE_COLUMNS}, slot_seconds, cost, charged, corrects, cost_centre, false AS shared
    FROM line_rows WHERE share >= {WHOLE}
    UNION ALL
    SELECT piece, {PIECE_COLUMNS}, sum(slot_seconds)::bigint, sum(cost)::bigint, sum(charged)::bigint,
        min(corrects), '', true
    FROM parts_of_pieces GROUP BY piece, {PIECE_COLUMNS}
),
standing AS MATERIALIZED (
    SELECT * FROM lines AS line WHERE NOT reversal
      AND NOT EXISTS (SELECT FROM line_rows AS reversal
          WHERE reversal.reversal AND reversal.corrects = line.id)
)
"""

TIME_SQL = """
-- Both sides of the comparison. Most lines have the same start and end as a row of the facts. Slots have the
-- type int, because PostgreSQL sums bigint as numeric, which takes several times as long.
sides AS MATERIALIZED (
    SELECT gpu, day, bucket, allocation, reservation, s, e, sum(in_ledger)::int AS in_ledger,
        sum(by_facts)::int AS by_facts
    FROM (
        SELECT gpu, day, bucket, allocation, reservation, s, e, slots AS in_ledger, 0 AS by_facts
        FROM standing
        UNION ALL
        SELECT gpu, day, bucket, allocation, reservation, s, e, 0, n::int FROM expected
    ) AS part
    GROUP BY gpu, day, bucket, allocation, reservation, s, e
),
unequal AS MATERIALIZED (
    SELECT gpu, day, bucket, allocation, reservation, s, e, in_ledger - by_facts AS difference
    FROM sides WHERE in_ledger <> by_facts
),
wrong_keys AS MATERIALIZED (
    SELECT DISTINCT gpu, day, bucket, allocation, reservation
    FROM (
        SELECT gpu, day, bucket, allocation, reservation, s AS at, difference FROM unequal
        UNION ALL
        SELECT gpu, day, bucket, allocation, reservation, e, -difference FROM unequal
    ) AS step
    GROUP BY gpu, day, bucket, allocation, reservation, at HAVING sum(difference) <> 0
),
steps AS (
    SELECT gpu, day, bucket, allocation, reservation, at, sum(step.slots) AS in_ledger,
        sum(step.n) AS by_facts
    FROM sides JOIN wrong_keys USING (gpu, day, bucket, allocation, reservation)
    CROSS JOIN LATERAL (VALUES (s, in_ledger, by_facts), (e, -in_ledger, -by_facts)) AS step (at, slots, n)
    GROUP BY gpu, day, bucket, allocation, reservation, at
),
levels AS (
    SELECT gpu, day, bucket, allocation, reservation, at AS s, lead(at) OVER by_time AS e,
        sum(in_ledger) OVER by_time AS in_ledger, sum(by_facts) OVER by_time AS by_facts
    FROM steps
    WINDOW by_time AS (PARTITION BY gpu, day, bucket, allocation, reservation ORDER BY at)
),
time_differences AS (
    SELECT 'time' AS check, line.id AS line, level.gpu, greatest(level.s, line.s) AS s, least(level.e,
        line.e) AS e,
        level.bucket AS field, level.in_ledger::text AS found, level.by_facts::text AS wanted,
        CASE WHEN level.allocation <> 0 THEN 'allocation ' || level.allocation
            WHEN level.reservation <> 0 THEN 'reservation ' || level.reservation
            ELSE coalesce((SELECT fact FROM conditions WHERE conditions.gpu = level.gpu
                AND conditions.s <= level.s AND level.s < conditions.e), 'GPU ' || level.gpu) END AS fact
    FROM levels AS level
    LEFT JOIN standing AS line ON line.gpu = level.gpu AND line.day = level.day AND line.bucket = level.bucket
        AND line.allocation = level.allocation AND line.reservation = level.reservation
        AND line.s < level.e AND level.s < line.e
    WHERE level.in_ledger <> level.by_facts AND level.s < level.e
)
"""

OWNERS_SQL = f"""
-- A month has one currency. Prices of another currency do not apply to it.
currencies AS (
    SELECT currency, valid_from, lead(valid_from) OVER (ORDER BY valid_from) AS next_from
    FROM telemetry_billingcurrency
),
prices AS (
    SELECT price.id, price.pool_id, price.model, price.valid_from, currencies.next_from
    FROM telemetry_price AS price LEFT JOIN currencies ON currencies.valid_from <= price.valid_from
        AND (currencies.next_from IS NULL OR price.valid_from < currencies.next_from)
    WHERE currencies.currency IS NULL OR currencies.currency = price.currency
),
rates AS (
    SELECT pool, model, id AS price, since, least(coalesce(lead(since) OVER by_time, {1 << 40}),
        coalesce({seconds("next_from")}, {1 << 40})) AS until
    FROM (
        SELECT kind.pool, kind.model, price.id, price.valid_from, price.next_from,
            {seconds("price.valid_from")} AS since
        FROM (SELECT DISTINCT pool, model FROM gpus) AS kind
        JOIN prices AS price ON price.model = kind.model
            AND (price.pool_id = kind.pool OR (price.pool_id IS NULL AND NOT EXISTS (
                SELECT FROM prices AS own WHERE own.pool_id = kind.pool AND own.model = kind.model
                AND own.valid_from <= price.valid_from
                AND own.next_from IS NOT DISTINCT FROM price.next_from)))
    ) AS card WINDOW by_time AS (PARTITION BY pool, model ORDER BY valid_from, id)
),
-- Work in a dedicated pool or in a reservation has no price factor.
factor_rows AS (
    SELECT pool, priority, workload_type, id AS factor, since,
        coalesce(lead(since) OVER by_time, {1 << 40}) AS until
    FROM (
        SELECT shared.pool, row.priority, row.workload_type, row.id, row.valid_from,
            {seconds("row.valid_from")} AS since
        FROM (SELECT DISTINCT pool FROM gpus WHERE owner IS NULL) AS shared
        JOIN telemetry_pricefactor AS row ON row.pool_id = shared.pool
            OR (row.pool_id IS NULL AND NOT EXISTS (
            SELECT FROM telemetry_pricefactor AS own WHERE own.pool_id = shared.pool
            AND own.priority IS NOT DISTINCT FROM row.priority AND own.workload_type = row.workload_type
            AND own.valid_from <= row.valid_from))
    ) AS card WINDOW by_time AS (PARTITION BY pool, priority, workload_type ORDER BY valid_from, id)
),
factors AS MATERIALIZED (
    SELECT * FROM factor_rows
    UNION ALL
    SELECT pool, priority, workload_type, NULL, -{1 << 40}, min(since) FROM factor_rows
    GROUP BY pool, priority, workload_type
),
owned_lines AS (
    SELECT line.*, gpus.pool AS right_pool, gpus.model AS right_model,
        holds.workload AS right_workload, coalesce(holds.workload_type, '') AS right_workload_type,
        coalesce(holds.simulated, false) AS right_simulated,
        coalesce(holds.project, booking.project_id) AS right_project,
        coalesce(holds.team, booked.team_id, CASE WHEN dedicated THEN gpus.owner END) AS right_team,
        coalesce(holds.person, booking.owner_id) AS right_person,
        coalesce(holds.project, booking.project_id, 0) AS paying_project,
        CASE WHEN dedicated AND holds.project IS NULL AND booking.project_id IS NULL THEN gpus.pool
            ELSE 0 END AS paying_pool,
        rates.price IS NOT NULL OR (line.price IS NULL AND NOT EXISTS (
            SELECT FROM rates WHERE rates.pool = gpus.pool AND rates.model = gpus.model
            AND rates.since < line.e AND line.s < rates.until)) AS priced,
        of_priority.factor AS right_priority_factor, of_type.factor AS right_type_factor,
        least(line.e, of_priority.until, of_type.until) AS right_end
    FROM standing AS line
    JOIN gpus ON gpus.gpu = line.gpu
    LEFT JOIN holds ON holds.allocation = line.allocation AND holds.gpu = line.gpu
    LEFT JOIN scheduler_reservation AS booking ON booking.id = line.reservation
    LEFT JOIN scheduler_project AS booked ON booked.id = booking.project_id
    -- The owner of a dedicated pool pays for the time in which nobody holds its GPUs.
    CROSS JOIN LATERAL (
        SELECT line.bucket = 'reserved_unused' AND gpus.owner IS NOT NULL AS dedicated
    ) AS of_pool
    LEFT JOIN rates ON rates.pool = gpus.pool AND rates.model = gpus.model AND rates.price = line.price
        AND rates.since <= line.s AND line.e <= rates.until
    LEFT JOIN factors AS of_priority ON of_priority.pool = gpus.pool AND of_priority.priority = holds.priority
        AND line.bucket = 'used' AND line.reservation = 0
        AND of_priority.since <= line.s AND line.s < of_priority.until
    LEFT JOIN factors AS of_type ON of_type.pool = gpus.pool AND of_type.workload_type = holds.workload_type
        AND line.bucket = 'used' AND line.reservation = 0
        AND of_type.since <= line.s AND line.s < of_type.until
),
wrong_owners AS (
    SELECT * FROM owned_lines AS line
    WHERE (line.pool, line.model, line.team, line.project, line.person, line.workload, line.workload_type,
            line.simulated)
        IS DISTINCT FROM (right_pool, right_model, right_team, right_project, right_person, right_workload,
            right_workload_type, right_simulated)
        OR NOT priced
        OR (priority_factor, type_factor, e)
            IS DISTINCT FROM (right_priority_factor, right_type_factor, right_end)
),
owner_differences AS (
    SELECT 'owner', line.id, line.gpu, s, e, field, found, wanted, fact FROM wrong_owners AS line
    CROSS JOIN LATERAL (
        SELECT CASE WHEN allocation <> 0 THEN 'allocation ' || allocation
            WHEN reservation <> 0 THEN 'reservation ' || reservation ELSE 'GPU ' || gpu END AS owner
    ) AS fact_of
    CROSS JOIN LATERAL (VALUES
        ('pool', pool::text, right_pool::text, 'GPU ' || gpu),
        ('model', model, right_model, 'GPU ' || gpu),
        ('team', team::text, right_team::text, owner),
        ('project', project::text, right_project::text, owner),
        ('user', person::text, right_person::text, owner),
        ('workload', workload::text, right_workload::text, owner),
        ('workload type', workload_type, right_workload_type, owner),
        ('simulated', simulated::text, right_simulated::text, owner),
        ('priority factor', priority_factor::text, right_priority_factor::text, owner),
        ('type factor', type_factor::text, right_type_factor::text, owner),
        ('end', to_timestamp(e)::text, to_timestamp(right_end)::text, 'a later price factor'),
        ('price', price::text, CASE WHEN priced THEN price::text ELSE (
            SELECT rates.price::text FROM rates WHERE rates.pool = right_pool AND rates.model = right_model
            AND rates.since <= s AND s < rates.until) END,
            coalesce((SELECT 'price ' || rates.price FROM rates WHERE rates.pool = right_pool
            AND rates.model = right_model AND rates.since <= s AND s < rates.until), 'GPU ' || gpu))
    ) AS owner_field (field, found, wanted, fact)
    WHERE found IS DISTINCT FROM wanted OR (field = 'price' AND NOT priced)
)
"""

# A charging run prices all lines of one GPU, day and price together. These lines have the same
# ``created_at``. After an outage of more than a week, charging works in several steps. A line that only
# continues the previous line is the first line of a new step. A correction keeps the total cost of the lines
# that it replaces. The ids show which lines belong to a correction: its reversals come first, then its new
# lines.
AMOUNTS_SQL = f"""
originals AS (
    SELECT *, count(*) OVER (PARTITION BY gpu, created_at, day, price) AS members
    FROM lines WHERE corrects IS NULL AND NOT reversal
),
continued AS (
    SELECT *, coalesce(s = lag(e) OVER (PARTITION BY gpu, created_at, day, price, bucket, allocation,
        reservation, slots, priority_factor, type_factor ORDER BY s), false) AS continues
    FROM originals WHERE members > 1
),
correcting AS (
    SELECT *, reversal AND NOT lag(reversal, 1, false) OVER (PARTITION BY gpu, created_at, day
        ORDER BY id) AS begins
    FROM lines WHERE corrects IS NOT NULL
),
corrections AS (
    SELECT *, count(*) FILTER (WHERE begins) OVER (PARTITION BY gpu, created_at, day ORDER BY id) AS batch
    FROM correcting
),
kept_costs AS (
    SELECT gpu, created_at, day, batch, price, -sum(cost)::bigint AS total
    FROM corrections WHERE reversal GROUP BY gpu, created_at, day, batch, price
),
-- A piece that only gets other cost centres keeps the amounts of the piece that it corrects.
copies AS (
    SELECT line.id FROM corrections AS line JOIN lines AS original ON original.id = line.corrects
    WHERE NOT line.reversal
      AND (line.s, line.e, line.slots, line.bucket, line.allocation, line.reservation, line.price,
            line.priority_factor, line.type_factor, line.cost, line.charged)
        IS NOT DISTINCT FROM (original.s, original.e, original.slots, original.bucket, original.allocation,
            original.reservation, original.price, original.priority_factor, original.type_factor,
            original.cost, original.charged)
),
batched AS (
    SELECT id, gpu, s, e, slots, bucket, allocation, reservation, cost, charged, day, created_at,
        price, priority_factor, type_factor,
        0 AS batch, false AS correction, NULL::bigint AS kept_cost
    FROM originals WHERE members = 1
    UNION ALL
    SELECT id, gpu, s, e, slots, bucket, allocation, reservation, cost, charged, day, created_at,
        price, priority_factor, type_factor,
        count(*) FILTER (WHERE continues) OVER (PARTITION BY gpu, created_at, day, price ORDER BY s), false,
        NULL
    FROM continued
    UNION ALL
    SELECT id, gpu, s, e, slots, bucket, allocation, reservation, cost, charged, day, created_at,
        price, priority_factor, type_factor,
        batch, true, coalesce(total, 0)
    FROM corrections LEFT JOIN kept_costs USING (gpu, created_at, day, batch, price) WHERE NOT reversal
),
-- The price of a line is the price of the rate card multiplied by the factors of its work. It is rounded to
-- the nearest millionth, and ties to the even one.
tariffs AS (
    SELECT batched.*, {seconds("price.valid_from")} AS since,
        (cost_per_gpu_hour * 1000000)::bigint AS cost_per_hour,
        (floor(exact) + CASE WHEN exact - floor(exact) > 0.5
            OR (exact - floor(exact) = 0.5 AND mod(floor(exact), 2) = 1) THEN 1 ELSE 0 END)::bigint
            AS price_per_hour
    FROM batched JOIN telemetry_price AS price ON price.id = batched.price
    LEFT JOIN telemetry_pricefactor AS of_priority ON of_priority.id = batched.priority_factor
    LEFT JOIN telemetry_pricefactor AS of_type ON of_type.id = batched.type_factor
    CROSS JOIN LATERAL (
        SELECT price_per_gpu_hour * 1000000 * coalesce(of_priority.factor, 1) * coalesce(of_type.factor,
            1) AS exact
    ) AS of_price
),
spans AS (
    SELECT *, slots * (e - s) AS weight, count(*) OVER batch_lines AS members,
        min(price_per_hour) OVER batch_lines <> max(price_per_hour) OVER batch_lines AS mixed,
        min(s) OVER batch_lines AS low, max(e) OVER batch_lines AS high,
        (sum(slots * (e - s)) OVER batch_lines)::bigint AS whole
    FROM tariffs
    WINDOW batch_lines AS (PARTITION BY gpu, created_at, day, price, correction, batch)
),
totals AS (
    SELECT *,
        coalesce(kept_cost, {_span_value("cost_per_hour")}) AS cost_total,
        {_span_value("price_per_hour")} AS price_total
    FROM spans WHERE low >= since
),
parts AS (
    SELECT *,
        cost_total / whole * weight + mod(cost_total, whole) * weight / whole AS cost_part,
        mod(mod(cost_total, whole) * weight, whole) AS cost_rest,
        price_total / whole * weight + mod(price_total, whole) * weight / whole AS price_part,
        mod(mod(price_total, whole) * weight, whole) AS price_rest
    FROM totals
),
ranked AS (
    SELECT *,
        row_number() OVER (batch_lines ORDER BY cost_rest DESC, s, bucket COLLATE "C", allocation,
            reservation, e)
            <= cost_total - sum(cost_part) OVER batch_lines AS cost_raised,
        row_number() OVER (batch_lines ORDER BY price_rest DESC, s, bucket COLLATE "C", allocation,
            reservation, e)
            <= price_total - sum(price_part) OVER batch_lines AS price_raised
    FROM parts WHERE members > 1
    WINDOW batch_lines AS (PARTITION BY gpu, created_at, day, price, correction, batch)
),
-- In a batch with several prices, each line gets its part of the value of the whole GPU at its own price.
mixed_parts AS (
    SELECT line.id, line.id = member.id AS itself, part,
        row_number() OVER (of_line ORDER BY rest DESC, member.s, member.bucket COLLATE "C", member.allocation,
            member.reservation, member.e)
            <= line.price_total - sum(part) OVER of_line AS raised
    FROM totals AS line JOIN totals AS member USING (gpu, created_at, day, price, correction, batch)
    CROSS JOIN LATERAL (
        SELECT line.price_total / line.whole * member.weight
                + mod(line.price_total, line.whole) * member.weight / line.whole AS part,
            mod(mod(line.price_total, line.whole) * member.weight, line.whole) AS rest
    ) AS of_member
    WHERE line.mixed WINDOW of_line AS (PARTITION BY line.id)
),
mixed_prices AS (SELECT id, part + raised::int AS right_price FROM mixed_parts WHERE itself),
right_amounts AS (
    SELECT id, gpu, s, e, bucket, price, cost, charged, cost_total AS right_cost,
        CASE WHEN cost_per_hour = price_per_hour THEN cost_total ELSE price_total END AS right_price
    FROM parts WHERE members = 1
    UNION ALL
    SELECT id, gpu, s, e, bucket, price, cost, charged, cost_part + cost_raised::int,
        CASE WHEN cost_per_hour = price_per_hour THEN cost_part + cost_raised::int
            WHEN mixed THEN right_price ELSE price_part + price_raised::int END
    FROM ranked LEFT JOIN mixed_prices USING (id)
    UNION ALL
    SELECT id, gpu, s, e, bucket, price, cost, charged, 0, 0 FROM batched WHERE price IS NULL
),
amount_differences AS (
    SELECT 'amount', id, gpu, s, e, field, (found / 1000000.0)::numeric(18, 6)::text,
        (wanted / 1000000.0)::numeric(18, 6)::text, coalesce('price ' || price, 'GPU ' || gpu)
    FROM right_amounts
    CROSS JOIN LATERAL (VALUES
        ('cost', cost, right_cost),
        ('charged', charged, CASE WHEN bucket IN ('used', 'reserved_unused') THEN right_price ELSE 0 END)
    ) AS amount (field, found, wanted)
    WHERE found <> wanted AND NOT EXISTS (SELECT FROM copies WHERE copies.id = right_amounts.id)
)
"""

FORM_SQL = f"""
reversal_differences AS (
    SELECT 'reversal', line.id, line.gpu_id, {seconds("line.start")}, {seconds('line."end"')}, 'reversal',
        'not the negative of its line', 'the negative of line ' || coalesce(line.corrects_id::text, ''),
        'line ' || coalesce(line.corrects_id::text, '')
    FROM telemetry_charge AS line LEFT JOIN telemetry_charge AS original ON original.id = line.corrects_id
    WHERE line.id IN (SELECT id FROM line_rows WHERE reversal)
      AND (original.reversal IS DISTINCT FROM false
        OR (line.pool_id, line.bucket, line.start, line."end", line.slots, line.slot_seconds, line.gpu_id,
            line.model,
            line.allocation_id, line.reservation_id, line.workload_id, line.team_id, line.project_id,
                line.user_id,
            line.team_name, line.project_name, line.user_name, line.workload_name, line.workload_type,
            line.cost_centre, line.share_percent, line.price_id, line.priority_factor_id,
            line.type_factor_id, line.cost,
            line.charged, line.simulated)
        IS DISTINCT FROM
            (original.pool_id, original.bucket, original.start, original."end", -original.slots,
            -original.slot_seconds, original.gpu_id, original.model, original.allocation_id,
                original.reservation_id,
            original.workload_id, original.team_id, original.project_id, original.user_id, original.team_name,
            original.project_name, original.user_name, original.workload_name, original.workload_type,
            original.cost_centre, original.share_percent, original.price_id,
            original.priority_factor_id, original.type_factor_id,
            -original.cost, -original.charged, original.simulated))
),
-- Texts are made for wrong lines only: they take longer than the comparisons.
misformed AS (
    SELECT * FROM lines
    WHERE slot_seconds <> slots * (e - s) OR start <> date_trunc('second', start)
        OR "end" <> date_trunc('second', "end") OR e > day_high OR s < day_low OR s >= day_high
        OR NOT abs(slots) BETWEEN 1 AND 840
),
form_differences AS (
    SELECT 'form', id, gpu, s, e, field, found, wanted, 'GPU ' || gpu
    FROM misformed CROSS JOIN LATERAL (VALUES
        ('slot-seconds', slot_seconds::text, (slots * (e - s))::text, slot_seconds <> slots * (e - s)),
        ('start', start::text, 'a whole second', start <> date_trunc('second', start)),
        ('end', "end"::text, 'a whole second of the same day',
            "end" <> date_trunc('second', "end") OR e > day_high),
        ('day', (date '1970-01-01' + day)::text, 'the day of its start', s < day_low OR s >= day_high),
        ('slots', slots::text, '1 to 840', NOT abs(slots) BETWEEN 1 AND 840)
    ) AS form (field, found, wanted, wrong)
    WHERE wrong
),
month_differences AS (
    SELECT 'month', lines.id, gpu, s, e, 'month', lines.month::text, right_month::text,
        'statement of ' || right_month
    FROM lines
    JOIN calendar USING (day) CROSS JOIN LATERAL (SELECT calendar.month AS right_month) AS of_day
    LEFT JOIN telemetry_statement AS statement ON statement.month = right_month
    WHERE lines.month <> right_month
      AND NOT coalesce(corrects IS NOT NULL AND lines.month > right_month
          AND statement.closed_at <= lines.created_at,
        false)
)
"""

AUDIT_SQL = f"""
WITH {CALENDAR_SQL}, {FACTS_SQL}, {LINES_SQL}, {TIME_SQL}, {OWNERS_SQL}, {SHARES_SQL}, {AMOUNTS_SQL},
    {FORM_SQL}
SELECT * FROM time_differences
UNION ALL SELECT * FROM owner_differences
UNION ALL SELECT * FROM share_differences
UNION ALL SELECT * FROM split_differences
UNION ALL SELECT * FROM amount_differences
UNION ALL SELECT * FROM reversal_differences
UNION ALL SELECT * FROM form_differences
UNION ALL SELECT * FROM month_differences
ORDER BY 3, 4, 2, 1, 6
"""

# Lines on a wrong statement: the month of the statement is earlier than the time of the line.
LATER_LINES_SQL = f"""
SELECT 'month', id, gpu_id, {seconds("start")}, {seconds('"end"')}, 'month', month::text,
    date_trunc('month', day)::date::text, 'line ' || id
FROM telemetry_charge WHERE month = %(month)s AND start >= %(end)s ORDER BY 3, 4, 2
"""

# The earliest day that the statement of the month corrects.
FIRST_DAY_SQL = "SELECT min(day) FROM telemetry_charge WHERE month = %(month)s AND start < %(start)s"
