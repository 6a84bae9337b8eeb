"""Assign cents to the statement lines of a month and to their cells, by largest remainder.

A cent is the smallest unit of a currency: 1 JPY, 0.01 EUR or 0.001 KWD. The rounded total of a month and
currency is split into the cents of its statement lines, and the cents of each statement line into the cents
of its cells. Every page, file and API answer shows sums of these cents, so all of them
agree. Charge lines keep six decimals.

All statements of one call run in the caller's transaction. A reader sees all new cents or none.
"""

from __future__ import annotations

from typing import Any

from django.db import connection

from telemetry.core.amounts import round_amount
from telemetry.core.currencies import decimals_of, smallest_unit
from telemetry.ledger.days import UPDATES_OF_DAYS, day_differences
from telemetry.ledger.people import UPDATE_PEOPLE, person_differences

_CURRENCIES = """
SELECT DISTINCT currency FROM telemetry_statementline WHERE statement_id = %(statement)s ORDER BY currency"""

# The parameter ``units`` is the number of cents in 1, and ``decimals`` is the number of decimals of a cent.
_LINE_TOTALS = """
SELECT coalesce(sum(cost), 0), coalesce(sum(floor(cost * %(units)s)), 0),
    coalesce(sum(charged), 0), coalesce(sum(floor(charged * %(units)s)), 0)
FROM telemetry_statementline
WHERE statement_id = %(statement)s AND currency = %(currency)s AND NOT shared_out"""

_CENT_TOTALS = """
SELECT coalesce(sum(cost_cents), 0), coalesce(sum(charged_cents), 0)
FROM telemetry_statementline WHERE statement_id = %(statement)s AND currency = %(currency)s"""

# Each amount is rounded down. The cents that the total lacks go, one each, to the largest remainders.
_ASSIGN_TO_LINES = """
WITH ranked AS (
    SELECT id, floor(cost * %(units)s) AS cost_floor, floor(charged * %(units)s) AS charged_floor,
        row_number() OVER (ORDER BY cost * %(units)s - floor(cost * %(units)s) DESC, id) AS cost_rank,
        row_number() OVER (ORDER BY charged * %(units)s - floor(charged * %(units)s) DESC, id) AS charged_rank
    FROM telemetry_statementline
    WHERE statement_id = %(statement)s AND currency = %(currency)s AND NOT shared_out),
assigned AS (
    SELECT id,
        round((cost_floor + (cost_rank <= %(cost_raised)s)::int) / %(units)s, %(decimals)s) AS cost_cents,
        round((charged_floor + (charged_rank <= %(charged_raised)s)::int) / %(units)s, %(decimals)s)
            AS charged_cents
    FROM ranked
    UNION ALL
    SELECT id, round(0::numeric, %(decimals)s), round(0::numeric, %(decimals)s) FROM telemetry_statementline
    WHERE statement_id = %(statement)s AND currency = %(currency)s AND shared_out)
UPDATE telemetry_statementline line
SET cost_cents = assigned.cost_cents, charged_cents = assigned.charged_cents, due = true
FROM assigned WHERE line.id = assigned.id
    AND (line.cost_cents, line.charged_cents, scale(line.cost_cents), scale(line.charged_cents))
    IS DISTINCT FROM (assigned.cost_cents, assigned.charged_cents, %(decimals)s, %(decimals)s)"""

# The charge of a cell of held time has three parts: used, idle, and not measured. Used and idle follow the
# measured use. The rest of the charge is not measured.
_ASSIGN_TO_CELLS = """
WITH ranked AS (
    SELECT cell.id, line.bucket, line.shared_out, cell.slot_seconds,
        floor(cell.cost * %(units)s) AS cost_floor, floor(cell.charged * %(units)s) AS charged_floor,
        line.cost_cents * %(units)s - sum(floor(cell.cost * %(units)s)) OVER of_line AS cost_raised,
        line.charged_cents * %(units)s - sum(floor(cell.charged * %(units)s)) OVER of_line AS charged_raised,
        row_number() OVER (PARTITION BY cell.line_id
            ORDER BY cell.cost * %(units)s - floor(cell.cost * %(units)s) DESC, cell.id) AS cost_rank,
        row_number() OVER (PARTITION BY cell.line_id
            ORDER BY cell.charged * %(units)s - floor(cell.charged * %(units)s) DESC, cell.id)
            AS charged_rank,
        least(greatest(coalesce(cell.covered_slot_seconds / nullif(cell.slot_seconds, 0), 0), 0), 1)
            AS covered_share,
        least(greatest(coalesce(cell.used_slot_seconds / nullif(cell.slot_seconds, 0), 0), 0), 1)
            AS used_share
    FROM telemetry_chargecell cell JOIN telemetry_statementline line ON line.id = cell.line_id
    WHERE line.statement_id = %(statement)s AND line.currency = %(currency)s AND line.due
    WINDOW of_line AS (PARTITION BY cell.line_id)),
assigned AS (
    SELECT id,
        round(CASE WHEN shared_out THEN 0 ELSE (cost_floor + (cost_rank <= cost_raised)::int) END / %(units)s,
            %(decimals)s) AS cost_cents,
        round((charged_floor + (charged_rank <= charged_raised)::int) / %(units)s, %(decimals)s)
            AS charged_cents,
        CASE WHEN bucket = 'used' THEN covered_share ELSE 0 END AS covered_share,
        CASE WHEN bucket = 'used' THEN least(used_share, covered_share) ELSE 0 END AS used_share
    FROM ranked),
divided AS (
    SELECT id, cost_cents, charged_cents,
        round(charged_cents * used_share::numeric, %(decimals)s) AS used_cents,
        round(charged_cents * covered_share::numeric, %(decimals)s)
            - round(charged_cents * used_share::numeric, %(decimals)s) AS idle_cents
    FROM assigned)
UPDATE telemetry_chargecell cell
SET cost_cents = divided.cost_cents, charged_cents = divided.charged_cents,
    used_cents = divided.used_cents, idle_cents = divided.idle_cents
FROM divided WHERE cell.id = divided.id
    AND (cell.cost_cents, cell.charged_cents, cell.used_cents, cell.idle_cents,
        scale(cell.charged_cents), scale(cell.used_cents))
    IS DISTINCT FROM (divided.cost_cents, divided.charged_cents, divided.used_cents, divided.idle_cents,
        %(decimals)s, %(decimals)s)"""

# The sums are materialised: without statistics of the tables, they could be computed anew for each line.
_SUM_OF_CELLS = """
WITH cells AS MATERIALIZED (
    SELECT cell.line_id, sum(cell.used_cents) AS used_cents, sum(cell.idle_cents) AS idle_cents,
        sum(cell.covered_slot_seconds) AS covered, sum(cell.used_slot_seconds) AS used
    FROM telemetry_chargecell cell JOIN telemetry_statementline due ON due.id = cell.line_id
    WHERE due.statement_id = %(statement)s AND due.currency = %(currency)s AND due.due
    GROUP BY cell.line_id)
UPDATE telemetry_statementline line
SET due = false, used_cents = cells.used_cents, idle_cents = cells.idle_cents,
    covered_slot_seconds = cells.covered, used_slot_seconds = cells.used
FROM cells WHERE line.id = cells.line_id"""


# The lines whose cents differ from the cents of their cells.
_CENT_DIFFERENCES = """
SELECT line.id, line.charged_cents, coalesce(sum(cell.charged_cents), 0), line.cost_cents,
    coalesce(sum(cell.cost_cents), 0)
FROM telemetry_statementline line LEFT JOIN telemetry_chargecell cell ON cell.line_id = line.id
WHERE line.statement_id = %(statement)s
GROUP BY line.id
HAVING (line.charged_cents, line.cost_cents)
    IS DISTINCT FROM (coalesce(sum(cell.charged_cents), 0), coalesce(sum(cell.cost_cents), 0))
ORDER BY line.id LIMIT 20"""


def assign_cents(statement: int) -> None:
    """Assign cents to the lines and cells of an open statement, given by id.

    Lines and cells are only written if their sums or cents have changed. The caller holds ``lock_ledger``.
    """
    with connection.cursor() as cursor:
        for values in _values_by_currency(cursor, statement):
            cursor.execute(_LINE_TOTALS, values)
            cost, cost_floors, charged, charged_floors = cursor.fetchone()
            unit = smallest_unit(values["currency"])
            values["cost_raised"] = round_amount(cost, unit) / unit - cost_floors
            values["charged_raised"] = round_amount(charged, unit) / unit - charged_floors
            for query in (_ASSIGN_TO_LINES, _ASSIGN_TO_CELLS, *UPDATES_OF_DAYS, UPDATE_PEOPLE, _SUM_OF_CELLS):
                cursor.execute(query, values)


def cent_differences(statement: int) -> list[str]:
    """Return a sentence for each difference between cents: lines, cells, sums per day and per person, and
    totals.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CENT_DIFFERENCES, {"statement": statement})
        found = [
            f"line {line}: charged {charged} and cells {cells_charged}, cost {cost} and cells {cells_cost}"
            for line, charged, cells_charged, cost, cells_cost in cursor.fetchall()
        ]
        for values in _values_by_currency(cursor, statement):
            currency, unit = values["currency"], smallest_unit(values["currency"])
            cursor.execute(_LINE_TOTALS, values)
            cost, _, charged, _ = cursor.fetchone()
            cursor.execute(_CENT_TOTALS, values)
            cost_cents, charged_cents = cursor.fetchone()
            for name, exact, cents in (("cost", cost, cost_cents), ("charged", charged, charged_cents)):
                if round_amount(exact, unit) != cents:
                    found.append(f"total {name} in {currency}: {exact} and lines {cents}")
    return found + day_differences(statement) + person_differences(statement)


def _values_by_currency(cursor: Any, statement: int) -> list[dict[str, Any]]:
    """Return the parameters of the queries for each currency in which the statement has lines."""
    cursor.execute(_CURRENCIES, {"statement": statement})
    return [
        {
            "statement": statement,
            "currency": currency,
            "units": 10 ** decimals_of(currency),
            "decimals": decimals_of(currency),
        }
        for (currency,) in cursor.fetchall()
    ]
