"""Keep the sums of each statement line per person."""

from __future__ import annotations

from django.db import connection

# The people of the lines whose cells have new cents, with the parameters of the queries in ``cents``.
UPDATE_PEOPLE = """
INSERT INTO telemetry_statementlineperson AS known (line_id, statement_id, user_id, user_name, slot_seconds,
    covered_slot_seconds, cost_cents, charged_cents, used_cents, idle_cents)
SELECT cell.line_id, cell.statement_id, cell.user_id, max(cell.user_name), sum(cell.slot_seconds),
    sum(cell.covered_slot_seconds), sum(cell.cost_cents), sum(cell.charged_cents), sum(cell.used_cents),
    sum(cell.idle_cents)
FROM telemetry_chargecell cell JOIN telemetry_statementline line ON line.id = cell.line_id
WHERE line.statement_id = %(statement)s AND line.currency = %(currency)s AND line.due
GROUP BY 1, 2, 3 ORDER BY 1, 3
ON CONFLICT (line_id, user_id) DO UPDATE
SET user_name = EXCLUDED.user_name, slot_seconds = EXCLUDED.slot_seconds,
    covered_slot_seconds = EXCLUDED.covered_slot_seconds, cost_cents = EXCLUDED.cost_cents,
    charged_cents = EXCLUDED.charged_cents, used_cents = EXCLUDED.used_cents,
    idle_cents = EXCLUDED.idle_cents
WHERE (known.user_name, known.slot_seconds, known.covered_slot_seconds, known.cost_cents,
        known.charged_cents, known.used_cents, known.idle_cents, scale(known.charged_cents))
    IS DISTINCT FROM (EXCLUDED.user_name, EXCLUDED.slot_seconds, EXCLUDED.covered_slot_seconds,
        EXCLUDED.cost_cents, EXCLUDED.charged_cents, EXCLUDED.used_cents, EXCLUDED.idle_cents,
        scale(EXCLUDED.charged_cents))"""

# The cells of a line sum to the line, which is compared elsewhere.
_DIFFERENCES = """
WITH people AS (
    SELECT line_id, sum(slot_seconds) AS slot_seconds, sum(cost_cents) AS cost, sum(charged_cents) AS charged,
        sum(used_cents) AS used, sum(idle_cents) AS idle
    FROM telemetry_statementlineperson WHERE statement_id = %(statement)s GROUP BY line_id)
SELECT line.id, line.charged_cents, coalesce(people.charged, 0), line.slot_seconds,
    coalesce(people.slot_seconds, 0)
FROM telemetry_statementline line LEFT JOIN people ON people.line_id = line.id
WHERE line.statement_id = %(statement)s
    AND (line.charged_cents, line.slot_seconds, line.cost_cents, line.used_cents, line.idle_cents)
    IS DISTINCT FROM (coalesce(people.charged, 0), coalesce(people.slot_seconds, 0),
        coalesce(people.cost, 0), coalesce(people.used, 0), coalesce(people.idle, 0))
ORDER BY line.id LIMIT 20"""


def person_differences(statement: int) -> list[str]:
    """Return a sentence for each difference between the lines of a statement and their sums per person.

    ``statement`` is its id.
    """
    with connection.cursor() as cursor:
        cursor.execute(_DIFFERENCES, {"statement": statement})
        return [
            f"line {line}: charged {charged} and people {of_people}, slot-seconds {seconds} and people {held}"
            for line, charged, of_people, seconds, held in cursor.fetchall()
        ]
