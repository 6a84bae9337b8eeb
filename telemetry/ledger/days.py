"""Keep the sums of each statement line per day."""

from __future__ import annotations

from django.db import connection

# The days of the lines whose cells have new cents. Its parameters are those of the queries in ``cents``.
UPDATE_DAYS = """
INSERT INTO telemetry_statementlineday AS known (line_id, statement_id, day, slot_seconds, charged_cents)
SELECT cell.line_id, cell.statement_id, cell.day, sum(cell.slot_seconds), sum(cell.charged_cents)
FROM telemetry_chargecell cell JOIN telemetry_statementline line ON line.id = cell.line_id
WHERE line.statement_id = %(statement)s AND line.currency = %(currency)s AND line.due
GROUP BY 1, 2, 3 ORDER BY 1, 3
ON CONFLICT (line_id, day) DO UPDATE
SET slot_seconds = EXCLUDED.slot_seconds, charged_cents = EXCLUDED.charged_cents
WHERE (known.slot_seconds, known.charged_cents, scale(known.charged_cents))
    IS DISTINCT FROM (EXCLUDED.slot_seconds, EXCLUDED.charged_cents, scale(EXCLUDED.charged_cents))"""

# The cells of a day sum to the day, and the cents of cells are compared with the line elsewhere.
_DIFFERENCES = """
WITH days AS (
    SELECT line_id, sum(slot_seconds) AS slot_seconds, sum(charged_cents) AS charged
    FROM telemetry_statementlineday WHERE statement_id = %(statement)s GROUP BY line_id)
SELECT line.id, line.charged_cents, coalesce(days.charged, 0), line.slot_seconds,
    coalesce(days.slot_seconds, 0)
FROM telemetry_statementline line LEFT JOIN days ON days.line_id = line.id
WHERE line.statement_id = %(statement)s AND (line.charged_cents, line.slot_seconds)
    IS DISTINCT FROM (coalesce(days.charged, 0), coalesce(days.slot_seconds, 0))
ORDER BY line.id LIMIT 20"""


def day_differences(statement: int) -> list[str]:
    """Return a sentence for each line of a statement, given by id, that differs from the sum of its days."""
    with connection.cursor() as cursor:
        cursor.execute(_DIFFERENCES, {"statement": statement})
        return [
            f"line {line}: charged {charged} and days {days_charged}, slot-seconds {seconds} and days {days}"
            for line, charged, days_charged, seconds, days in cursor.fetchall()
        ]
