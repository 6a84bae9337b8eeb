"""Keep the daily sums of each statement line, and of each statement."""

from __future__ import annotations

from django.db import connection

# The days of the lines whose cells have new cents.
_UPDATE_DAYS = """
INSERT INTO telemetry_statementlineday AS known (line_id, statement_id, day, slot_seconds, charged_cents)
SELECT cell.line_id, cell.statement_id, cell.day, sum(cell.slot_seconds), sum(cell.charged_cents)
FROM telemetry_chargecell cell JOIN telemetry_statementline line ON line.id = cell.line_id
WHERE line.statement_id = %(statement)s AND line.currency = %(currency)s AND line.due
GROUP BY 1, 2, 3 ORDER BY 1, 3
ON CONFLICT (line_id, day) DO UPDATE
SET slot_seconds = EXCLUDED.slot_seconds, charged_cents = EXCLUDED.charged_cents
WHERE (known.slot_seconds, known.charged_cents, scale(known.charged_cents))
    IS DISTINCT FROM (EXCLUDED.slot_seconds, EXCLUDED.charged_cents, scale(EXCLUDED.charged_cents))"""

# The totals of the days on which these lines have time. These days are materialised: without statistics of
# the tables, they could be computed anew for each day of each line.
_UPDATE_TOTALS = """
WITH due_days AS MATERIALIZED (
    SELECT DISTINCT due.day
    FROM telemetry_statementlineday due JOIN telemetry_statementline line ON line.id = due.line_id
    WHERE line.statement_id = %(statement)s AND line.due)
INSERT INTO telemetry_statementday AS known (statement_id, day, currency, slot_seconds, charged_cents)
SELECT days.statement_id, days.day, line.currency,
    coalesce(sum(days.slot_seconds)
        FILTER (WHERE line.bucket IN ('used', 'reserved_unused') AND NOT line.idle_share), 0),
    sum(days.charged_cents)
FROM telemetry_statementlineday days JOIN telemetry_statementline line ON line.id = days.line_id
WHERE days.statement_id = %(statement)s AND line.currency = %(currency)s
    AND days.day IN (SELECT day FROM due_days)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
ON CONFLICT (statement_id, day, currency) DO UPDATE
SET slot_seconds = EXCLUDED.slot_seconds, charged_cents = EXCLUDED.charged_cents
WHERE (known.slot_seconds, known.charged_cents, scale(known.charged_cents))
    IS DISTINCT FROM (EXCLUDED.slot_seconds, EXCLUDED.charged_cents, scale(EXCLUDED.charged_cents))"""

# In this order, with the parameters of the queries in ``cents``.
UPDATES_OF_DAYS = (_UPDATE_DAYS, _UPDATE_TOTALS)

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


_DIFFERENCES_OF_TOTALS = """
WITH sums AS (
    SELECT days.day, line.currency, sum(days.charged_cents) AS charged
    FROM telemetry_statementlineday days JOIN telemetry_statementline line ON line.id = days.line_id
    WHERE days.statement_id = %(statement)s GROUP BY 1, 2),
totals AS (
    SELECT day, currency, charged_cents AS charged FROM telemetry_statementday
    WHERE statement_id = %(statement)s)
SELECT day, currency, coalesce(totals.charged, 0), coalesce(sums.charged, 0)
FROM totals FULL JOIN sums USING (day, currency)
WHERE coalesce(totals.charged, 0) <> coalesce(sums.charged, 0) ORDER BY 1, 2 LIMIT 20"""


def day_differences(statement: int) -> list[str]:
    """Return a sentence for each difference between a statement's lines, their daily sums and the daily
    totals.

    ``statement`` is its id.
    """
    with connection.cursor() as cursor:
        cursor.execute(_DIFFERENCES, {"statement": statement})
        found = [
            f"line {line}: charged {charged} and days {days_charged}, slot-seconds {seconds} and days {days}"
            for line, charged, days_charged, seconds, days in cursor.fetchall()
        ]
        cursor.execute(_DIFFERENCES_OF_TOTALS, {"statement": statement})
        return found + [
            f"day {day} in {currency}: charged {total} and lines {lines}"
            for day, currency, total, lines in cursor.fetchall()
        ]
