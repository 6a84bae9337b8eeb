"""Assign the cents of a month anew from its charge lines, in SQL, and compare them with the ledger.

The rule: the total of a currency is rounded half to even. Each statement line is rounded down to cents, and
the cents that the total lacks go, one each, to the lines with the largest remainders. The cents of a line go
to its cells in the same way. Of equal remainders, the lowest id comes first.
"""

from __future__ import annotations

# Currencies of ISO 4217 whose smallest unit is not a hundredth. Charging has its own list; a test compares
# them.
WITHOUT_DECIMALS = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
WITH_THREE_DECIMALS = "BHD IQD JOD KWD LYD OMR TND"

# A month that version 0.1 closed keeps the cents of that version. While charging runs, lines of an open month
# have no cents yet. Shares of idle time and adjustments have no charge lines; other queries check their
# amounts.
CENTS_SQL = """
WITH statement AS (
    SELECT id FROM telemetry_statement AS s
    WHERE month = %(month)s AND NOT (state = 'closed' AND digest_format = 1)
        AND NOT (state = 'open' AND EXISTS (
            SELECT FROM telemetry_statementline AS l WHERE l.statement_id = s.id AND l.due))
),
lines AS MATERIALIZED (
    SELECT l.*, CASE WHEN currency = ANY(%(without_decimals)s) THEN 1
            WHEN currency = ANY(%(with_three_decimals)s) THEN 1000 ELSE 100 END::numeric AS units,
        NOT idle_share AND bucket NOT IN ('credit', 'adjustment') AS has_charges
    FROM telemetry_statementline AS l WHERE statement_id IN (SELECT id FROM statement)
),
charges AS MATERIALIZED (
    SELECT pool_id, cost_centre, coalesce(team_id, 0) AS team, coalesce(project_id, 0) AS project,
        workload_type, model, bucket, nullif(date_trunc('month', day)::date, month) AS corrected,
        coalesce(user_id, 0) AS person, coalesce(workload_id, 0) AS workload, day,
        sum(cost) AS cost, sum(charged) AS charged
    FROM telemetry_charge WHERE month = %(month)s AND EXISTS (SELECT FROM statement)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
),
placed AS (
    SELECT l.id AS line, c.person, c.workload, c.day, c.cost, c.charged
    FROM charges AS c LEFT JOIN lines AS l ON l.has_charges AND l.pool_id = c.pool_id
        AND l.cost_centre = c.cost_centre AND coalesce(l.team_id, 0) = c.team
        AND coalesce(l.project_id, 0) = c.project AND l.workload_type = c.workload_type AND l.model = c.model
        AND l.bucket = c.bucket
        AND coalesce(l.corrected_month, '-infinity') = coalesce(c.corrected, '-infinity')
),
cells AS (
    SELECT cell.id, cell.line_id AS line, coalesce(cell.user_id, 0) AS person,
        coalesce(cell.workload_id, 0) AS workload, cell.day, cell.cost, cell.charged, cell.cost_cents,
        cell.charged_cents
    FROM telemetry_chargecell AS cell WHERE cell.line_id IN (SELECT id FROM lines)
),
amounts AS MATERIALIZED (
    SELECT cell.id AS cell, coalesce(cell.line, placed.line) AS line, coalesce(placed.cost, 0) AS cost,
        coalesce(placed.charged, 0) AS charged, cell.cost_cents, cell.charged_cents
    FROM (SELECT * FROM cells WHERE line IN (SELECT id FROM lines WHERE has_charges)) AS cell
    FULL JOIN placed ON placed.line = cell.line AND placed.person = cell.person
        AND placed.workload = cell.workload AND placed.day = cell.day
    UNION ALL
    SELECT id, line, cost, charged, cost_cents, charged_cents FROM cells
    WHERE line IN (SELECT id FROM lines WHERE NOT has_charges)
),
line_values AS (
    SELECT l.id, l.currency, l.units, l.shared_out, value.*
    FROM lines AS l
    LEFT JOIN (SELECT line, sum(cost) AS cost, sum(charged) AS charged FROM amounts GROUP BY 1) AS own
        ON own.line = l.id
    CROSS JOIN LATERAL (VALUES
        ('cost', coalesce(own.cost, 0) * l.units, l.cost_cents * l.units),
        ('charged', coalesce(own.charged, 0) * l.units, l.charged_cents * l.units)
    ) AS value (field, exact, found)
),
line_totals AS (
    SELECT currency, field, floor(exact) + (rest > 0.5 OR (rest = 0.5 AND mod(floor(exact), 2) <> 0))::int
        - floors AS raised
    FROM (
        SELECT currency, field, sum(exact) AS exact, sum(exact) - floor(sum(exact)) AS rest,
            sum(floor(exact)) AS floors
        FROM line_values WHERE NOT shared_out GROUP BY 1, 2
    ) AS sums
),
wanted_lines AS (
    SELECT id, units, field, found, floor(exact) + (row_number() OVER (
        PARTITION BY currency, field ORDER BY exact - floor(exact) DESC, id) <= raised)::int AS wanted
    FROM line_values JOIN line_totals USING (currency, field) WHERE NOT shared_out
    UNION ALL
    SELECT id, units, field, found, 0 FROM line_values WHERE shared_out
),
cell_values AS (
    SELECT a.cell, a.line, l.units, l.shared_out, value.*, whole.wanted AS whole
    FROM amounts AS a JOIN lines AS l ON l.id = a.line
    CROSS JOIN LATERAL (VALUES
        ('cost', a.cost * l.units, a.cost_cents * l.units),
        ('charged', a.charged * l.units, a.charged_cents * l.units)
    ) AS value (field, exact, found)
    JOIN wanted_lines AS whole ON whole.id = a.line AND whole.field = value.field
    WHERE a.cell IS NOT NULL
),
wanted_cells AS (
    SELECT cell, line, units, field, found, CASE WHEN shared_out THEN 0 ELSE floor(exact)
        + (row_number() OVER (of_line ORDER BY exact - floor(exact) DESC, cell)
            <= whole - sum(floor(exact)) OVER of_line)::int END AS wanted
    FROM cell_values WINDOW of_line AS (PARTITION BY line, field)
)
SELECT 'statement line ' || id, field || ' in cents', trim_scale(found / units)::text,
    trim_scale(wanted / units)::text
FROM wanted_lines WHERE found <> wanted
UNION ALL
SELECT 'cell ' || cell || ' of statement line ' || line, field || ' in cents',
    trim_scale(found / units)::text, trim_scale(wanted / units)::text
FROM wanted_cells WHERE found <> wanted
UNION ALL
SELECT coalesce('statement line ' || line, 'no statement line'), 'charge lines without a cell',
    concat_ws(', ', 'cost ' || sum(cost), 'charged ' || sum(charged)), 'none'
FROM amounts WHERE cell IS NULL GROUP BY line HAVING sum(abs(cost)) + sum(abs(charged)) <> 0
ORDER BY 1, 2
"""
