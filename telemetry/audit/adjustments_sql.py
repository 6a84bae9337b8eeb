"""Check approved adjustments, their statement lines, and the lines of showback, in SQL."""

from __future__ import annotations

# ``places`` has the rows of both sides of a comparison, with opposite signs. If the sum of a group is not
# zero, its sides differ.
ADJUSTMENTS_SQL = """
WITH adjusted AS (
    SELECT a.* FROM telemetry_adjustment AS a JOIN telemetry_statement AS s ON s.id = a.statement_id
    WHERE s.month = %(month)s AND a.state = 'approved'
),
adjusted_lines AS (
    SELECT l.* FROM telemetry_statementline AS l JOIN telemetry_statement AS s ON s.id = l.statement_id
    WHERE s.month = %(month)s AND l.bucket IN ('credit', 'adjustment')
),
places AS (
    SELECT l.id AS line, c.id AS cell, l.bucket, l.cost_centre, coalesce(l.team_id, 0) AS team,
        coalesce(l.project_id, 0) AS project, l.currency, c.day, coalesce(c.user_id, 0) AS person,
        coalesce(c.workload_id, 0) AS workload, -c.charged_cents AS amount
    FROM adjusted_lines AS l JOIN telemetry_chargecell AS c ON c.line_id = l.id
    UNION ALL
    SELECT c.line_id, c.id, a.kind, a.cost_centre, coalesce(a.team_id, 0), coalesce(a.project_id, 0),
        a.currency, a.day, coalesce(charge.user_id, 0), coalesce(charge.workload_id, 0), a.amount
    FROM adjusted AS a JOIN telemetry_chargecell AS c ON c.id = a.cell_id
    LEFT JOIN telemetry_charge AS charge ON charge.id = a.charge_id
),
reversed AS (
    SELECT corrects_id AS id FROM telemetry_charge
    WHERE month = %(month)s AND corrects_id IS NOT NULL AND reversal
),
credited AS (
    SELECT 'charge line ' || charge_id AS subject, charge_id AS id, 'charge' AS of, sum(amount) AS amount
    FROM telemetry_adjustment WHERE kind = 'credit' AND state = 'approved' AND charge_id IS NOT NULL
        AND (charge_id IN (SELECT charge_id FROM adjusted) OR charge_id IN (SELECT id FROM reversed))
    GROUP BY charge_id
    UNION ALL
    SELECT 'statement line ' || line_id, line_id, 'line', sum(amount)
    FROM telemetry_adjustment WHERE kind = 'credit' AND state = 'approved' AND line_id IS NOT NULL
        AND line_id IN (SELECT line_id FROM adjusted)
    GROUP BY line_id
)
SELECT 'cell ' || cell || ' of statement line ' || line,
    'amount minus approved adjustments of ' || cost_centre || ', ' || bucket, (-sum(amount))::text, '0'
FROM places
GROUP BY line, cell, bucket, cost_centre, team, project, currency, day, person, workload
HAVING sum(amount) <> 0
UNION ALL
SELECT 'statement line ' || id, 'slot-seconds, cost or pool of an adjustment',
    concat_ws(', ', slot_seconds, cost_cents, 'pool ' || pool_id), 'none'
FROM adjusted_lines WHERE slot_seconds <> 0 OR cost_cents <> 0 OR pool_id IS NOT NULL
UNION ALL
SELECT 'statement line ' || l.id, 'showback', l.showback::text, wanted.showback::text
FROM telemetry_statementline AS l JOIN telemetry_statement AS s ON s.id = l.statement_id
CROSS JOIN LATERAL (
    SELECT coalesce((
        SELECT mode.mode = 'showback' FROM telemetry_teambillingmode AS mode
        WHERE mode.team_id = l.team_id AND mode.first_month <= coalesce(l.corrected_month, s.month)
        ORDER BY mode.first_month DESC, mode.id DESC LIMIT 1), false) AS showback
) AS wanted
WHERE s.month = %(month)s AND l.showback <> wanted.showback
UNION ALL
SELECT 'adjustment ' || number, 'approver', decided_by_name, 'another person than the author'
FROM adjusted WHERE decided_by_id IS NULL OR decided_by_id = author_id
UNION ALL
SELECT 'adjustment ' || number, 'cost centre', adjusted.cost_centre, l.cost_centre
FROM adjusted JOIN telemetry_statementline AS l ON l.id = adjusted.line_id
WHERE l.cost_centre <> adjusted.cost_centre
UNION ALL
SELECT subject, 'sum of credits', amount::text, 'between ' || -whole || ' and 0'
FROM (
    SELECT credited.*, CASE of
        WHEN 'charge' THEN (
            SELECT sum(charged) FROM telemetry_charge
            WHERE id = credited.id OR (corrects_id = credited.id AND reversal AND month <= %(month)s))
        ELSE (SELECT charged_cents FROM telemetry_statementline WHERE id = credited.id) END AS whole
    FROM credited
) AS sums WHERE amount > 0 OR -amount > whole
ORDER BY 1, 2"""
