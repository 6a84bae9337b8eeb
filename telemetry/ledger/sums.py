"""Keep the sums of charge lines per statement line and per cell.

``add_to_sums`` runs in the transaction that inserts charge lines, so that the sums equal the lines at any
time. ``sum_differences`` proves this before a month is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from django.db import connection

from telemetry.core.charge_model import ADJUSTMENT_BUCKETS
from telemetry.sql_values import array_text

# Charge lines with the columns of their statement line and cell. Measured use is read here and nowhere else.
# A charge whose month differs from the month of its day corrects a closed month.
_CHARGES = """
    SELECT s.id AS statement_id, c.pool_id, c.cost_centre, c.team_id, c.project_id, c.workload_type, c.model,
        c.bucket, nullif(date_trunc('month', c.day)::date, c.month) AS corrected_month,
        c.user_id, c.workload_id, c.day, c.user_name, c.workload_name,
        c.slot_seconds, c.cost, c.charged, e.covered_slot_seconds, e.used_slot_seconds,
        s.currency AS statement_currency
    FROM telemetry_charge c JOIN telemetry_statement s ON s.month = c.month
    LEFT JOIN telemetry_chargeevidence e ON e.charge_id = c.id"""
# Adds to the statement lines first. Then ``lines`` has the id of each line, new or not.
_ADD_TO_SUMS = f"""
WITH charges AS MATERIALIZED ({_CHARGES}
    -- Without the second condition, the evidence of all charges would be read.
    AND e.charge_id = ANY(%(charges)s::bigint[]) WHERE c.id = ANY(%(charges)s::bigint[])),
lines AS (
    INSERT INTO telemetry_statementline AS line (
        statement_id, pool_id, cost_centre, team_id, project_id, workload_type, model, bucket,
        corrected_month, currency, idle_share, shared_out, showback, due, pool_name, team_name, project_name,
        slot_seconds, cost, charged, cost_cents, charged_cents, used_cents, idle_cents)
    SELECT statement_id, pool_id, cost_centre, team_id, project_id, workload_type, model, bucket,
        corrected_month,
        -- A correction has the currency of the month that it corrects.
        coalesce((SELECT nullif(currency, '') FROM telemetry_statement WHERE month = corrected_month),
            min(statement_currency)),
        false, false, false, true, '', '', '',
        sum(slot_seconds), sum(cost), sum(charged), 0, 0, 0, 0
    FROM charges GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9
    ON CONFLICT (statement_id, pool_id, cost_centre, team_id, project_id, workload_type, model, bucket,
        corrected_month, idle_share) WHERE gpu_hours IS NULL
    DO UPDATE SET due = true, slot_seconds = line.slot_seconds + EXCLUDED.slot_seconds,
        cost = line.cost + EXCLUDED.cost, charged = line.charged + EXCLUDED.charged
    RETURNING line.id, line.statement_id, line.pool_id, line.cost_centre, line.team_id, line.project_id,
        line.workload_type, line.model, line.bucket, line.corrected_month)
INSERT INTO telemetry_chargecell AS cell (
    line_id, statement_id, user_id, workload_id, day, user_name, workload_name,
    slot_seconds, cost, charged, covered_slot_seconds, used_slot_seconds,
    cost_cents, charged_cents, used_cents, idle_cents)
SELECT line.id, line.statement_id, c.user_id, c.workload_id, c.day, max(c.user_name), max(c.workload_name),
    sum(c.slot_seconds), sum(c.cost), sum(c.charged), sum(c.covered_slot_seconds), sum(c.used_slot_seconds),
    0, 0, 0, 0
FROM charges c JOIN lines line ON line.statement_id = c.statement_id
    AND line.pool_id = c.pool_id AND line.cost_centre = c.cost_centre AND line.workload_type = c.workload_type
    AND line.model = c.model AND line.bucket = c.bucket
    -- Unlike IS NOT DISTINCT FROM, these can be hashed.
    AND coalesce(line.team_id, 0) = coalesce(c.team_id, 0)
    AND coalesce(line.project_id, 0) = coalesce(c.project_id, 0)
    AND coalesce(line.corrected_month, '-infinity') = coalesce(c.corrected_month, '-infinity')
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 3, 4, 5
ON CONFLICT (line_id, user_id, workload_id, day) DO UPDATE SET
    slot_seconds = cell.slot_seconds + EXCLUDED.slot_seconds,
    cost = cell.cost + EXCLUDED.cost, charged = cell.charged + EXCLUDED.charged,
    covered_slot_seconds = coalesce(cell.covered_slot_seconds + EXCLUDED.covered_slot_seconds,
        cell.covered_slot_seconds, EXCLUDED.covered_slot_seconds),
    used_slot_seconds = coalesce(cell.used_slot_seconds + EXCLUDED.used_slot_seconds,
        cell.used_slot_seconds, EXCLUDED.used_slot_seconds)"""

# The measured use of the cells of changed charges, summed again from all charges of these cells.
_UPDATE_MEASURED_USE = f"""
WITH changed AS (
    {_CHARGES} WHERE c.id = ANY(%(charges)s::bigint[])
        OR (c.reversal AND c.corrects_id = ANY(%(charges)s::bigint[]))),
keys AS (
    SELECT DISTINCT statement_id, pool_id, cost_centre, team_id, project_id, workload_type, model, bucket,
        corrected_month, user_id, workload_id, day
    FROM changed),
charges AS ({_CHARGES} WHERE c.workload_id IN (SELECT workload_id FROM keys)),
sums AS (
    SELECT keys.*, sum(c.covered_slot_seconds) AS covered, sum(c.used_slot_seconds) AS used
    FROM keys JOIN charges c ON c.workload_id = keys.workload_id AND c.day = keys.day
        AND c.statement_id = keys.statement_id AND c.pool_id = keys.pool_id
        AND c.cost_centre = keys.cost_centre AND c.workload_type = keys.workload_type
        AND c.model = keys.model AND c.bucket = keys.bucket
        AND c.team_id IS NOT DISTINCT FROM keys.team_id AND c.user_id IS NOT DISTINCT FROM keys.user_id
        AND c.project_id IS NOT DISTINCT FROM keys.project_id
        AND c.corrected_month IS NOT DISTINCT FROM keys.corrected_month
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
updated AS (
    UPDATE telemetry_chargecell cell
    SET covered_slot_seconds = sums.covered, used_slot_seconds = sums.used
    FROM sums JOIN telemetry_statementline line ON line.statement_id = sums.statement_id
        AND line.pool_id = sums.pool_id AND line.cost_centre = sums.cost_centre
        AND line.workload_type = sums.workload_type AND line.model = sums.model
        AND line.bucket = sums.bucket AND NOT line.idle_share
        AND line.team_id IS NOT DISTINCT FROM sums.team_id
        AND line.project_id IS NOT DISTINCT FROM sums.project_id
        AND line.corrected_month IS NOT DISTINCT FROM sums.corrected_month
    WHERE cell.line_id = line.id AND cell.workload_id = sums.workload_id AND cell.day = sums.day
        AND cell.user_id IS NOT DISTINCT FROM sums.user_id
        AND (cell.covered_slot_seconds, cell.used_slot_seconds)
        IS DISTINCT FROM (sums.covered, sums.used)
    RETURNING cell.line_id)
UPDATE telemetry_statementline SET due = true WHERE NOT due AND id IN (SELECT line_id FROM updated)"""

# Both sides of a comparison with opposite signs: a group whose sums are not zero differs.
_DIFFERENCES = f"""
WITH charges AS MATERIALIZED (
    SELECT pool_id, cost_centre, team_id, project_id, workload_type, model, bucket, corrected_month, user_id,
        workload_id, day, sum(slot_seconds) AS slot_seconds, sum(cost) AS cost, sum(charged) AS charged
    FROM ({_CHARGES} WHERE c.month = %(month)s) AS each GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
lines AS (
    SELECT l.* FROM telemetry_statementline l JOIN telemetry_statement s ON s.id = l.statement_id
    WHERE s.month = %(month)s AND NOT l.idle_share AND NOT l.bucket = ANY(%(adjusted)s)),
sides AS (
    SELECT 'charge lines and cells' AS compared, pool_id, cost_centre, team_id, project_id, workload_type,
        model, bucket, corrected_month, user_id, workload_id, day, slot_seconds, cost, charged
    FROM charges
    UNION ALL
    SELECT 'charge lines and cells', l.pool_id, l.cost_centre, l.team_id, l.project_id, l.workload_type,
        l.model, l.bucket, l.corrected_month, c.user_id, c.workload_id, c.day,
        -c.slot_seconds, -c.cost, -c.charged
    FROM telemetry_chargecell c JOIN lines l ON l.id = c.line_id
    UNION ALL
    SELECT 'charge lines and statement lines', pool_id, cost_centre, team_id, project_id, workload_type,
        model, bucket, corrected_month, NULL, NULL, NULL, slot_seconds, cost, charged
    FROM charges
    UNION ALL
    SELECT 'charge lines and statement lines', pool_id, cost_centre, team_id, project_id, workload_type,
        model, bucket, corrected_month, NULL, NULL, NULL, -slot_seconds, -cost, -charged
    FROM lines)
SELECT compared, pool_id, cost_centre, team_id, project_id, model, bucket, workload_id, day,
    sum(slot_seconds), sum(cost), sum(charged)
FROM sides
GROUP BY compared, pool_id, cost_centre, team_id, project_id, workload_type, model, bucket, corrected_month,
    user_id, workload_id, day
HAVING sum(slot_seconds) <> 0 OR sum(cost) <> 0 OR sum(charged) <> 0
ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9 LIMIT %(limit)s"""


@dataclass(frozen=True)
class SumDifference:
    """Charge lines whose sums differ from the sums that are kept for them. Amounts are lines minus sums."""

    compared: str
    pool: int
    cost_centre: str
    team: int | None
    project: int | None
    model: str
    bucket: str
    workload: int | None
    day: date | None
    slot_seconds: int
    cost: Decimal
    charged: Decimal

    def __str__(self) -> str:
        place = f"pool {self.pool}, {self.model}, {self.bucket}, {self.cost_centre or 'no cost centre'}"
        owner = f"team {self.team}, project {self.project}, workload {self.workload}, day {self.day}"
        amounts = f"slot-seconds {self.slot_seconds}, cost {self.cost}, charged {self.charged}"
        return f"{self.compared}: {place}, {owner}: {amounts}"


def add_to_sums(charges: Sequence[int]) -> None:
    """Add inserted charge lines, given by id, to the sums of their statement lines and cells.

    The caller holds ``lock_ledger`` and has inserted the lines in the same transaction.
    """
    with connection.cursor() as cursor:
        cursor.execute(_ADD_TO_SUMS, {"charges": array_text(charges)})


def update_measured_use(charges: Sequence[int]) -> None:
    """Update the measured use of the cells of charge lines whose usage evidence has changed.

    The caller holds ``lock_ledger`` and keeps the months of the lines open.
    """
    with connection.cursor() as cursor:
        cursor.execute(_UPDATE_MEASURED_USE, {"charges": array_text(charges)})


def sum_differences(month: date, limit: int = 20) -> list[SumDifference]:
    """Return the differences between a month's charge lines and their kept sums, at most ``limit``."""
    with connection.cursor() as cursor:
        cursor.execute(_DIFFERENCES, {"month": month, "limit": limit, "adjusted": list(ADJUSTMENT_BUCKETS)})
        return [SumDifference(*row) for row in cursor.fetchall()]
