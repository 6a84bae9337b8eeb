"""Build the queries for the rows of the FOCUS datasets."""

from __future__ import annotations

from collections.abc import Iterable

from telemetry.core.charge_model import ADJUSTMENT_BUCKETS, CHARGED_BUCKETS, HELD_BUCKETS
from telemetry.exports.focus.columns import FocusColumn
from telemetry.exports.focus.row_values import (
    FocusSource,
    adjustment_values,
    billing_period_values,
    charge_values,
    idle_share_values,
    invoice_line_values,
    invoice_rounding_values,
    rounding_values,
    select_list,
)

# Time that somebody held or reserved. Other time is nobody's; it is charged only as shared idle time.
OWNED_BUCKETS = tuple(sorted(str(bucket) for bucket in CHARGED_BUCKETS | HELD_BUCKETS))
INVOICED_BUCKETS = tuple(sorted((*OWNED_BUCKETS, *ADJUSTMENT_BUCKETS)))

_LOOKUPS = """
    invoices AS (
        SELECT * FROM unnest(%(numbers)s::text[], %(cost_centres)s::text[], %(currencies)s::text[],
            %(names)s::text[],
            %(roundings)s::numeric[], %(orders)s::text[], %(due_at)s::timestamptz[], %(terms)s::text[])
        WITH ORDINALITY
        AS i(number, cost_centre, currency, name, rounding, purchase_order, due_at, payment_terms, position)),
    corrected AS (
        SELECT * FROM unnest(%(months)s::date[], %(firsts)s::timestamptz[], %(lasts)s::timestamptz[])
        AS m(month, first, last)),
    corrected_invoices AS (
        SELECT * FROM unnest(%(old_months)s::date[], %(old_cost_centres)s::text[],
            %(old_currencies)s::text[], %(old_numbers)s::text[])
        AS r(month, cost_centre, currency, number))"""
_NAMED = """
    LEFT JOIN scheduler_pool pool ON pool.id = l.pool_id
    LEFT JOIN scheduler_team team ON team.id = l.team_id
    LEFT JOIN scheduler_project project ON project.id = l.project_id"""


def charges_sql(columns: Iterable[FocusColumn], source: FocusSource, visible: str = "") -> str:
    """Return the query for the charge lines with ids in ``[low, high)``, in order of id.

    ``visible`` is a condition on the id of a charge line; empty means all lines. A charge line has no column
    for the month that it corrects. The query finds this month by its bounds.
    """
    return f"""WITH {_LOOKUPS}
    SELECT {select_list(columns, charge_values(source))}
    FROM telemetry_charge c
    JOIN scheduler_gpu g ON g.id = c.gpu_id
    LEFT JOIN scheduler_pool pool ON pool.id = c.pool_id
    LEFT JOIN telemetry_price p ON p.id = c.price_id
    LEFT JOIN telemetry_chargeevidence e ON e.charge_id = c.id
        AND e.charge_id >= %(low)s AND e.charge_id < %(high)s
    LEFT JOIN telemetry_statementline l ON l.statement_id = %(statement)s AND NOT l.idle_share
        AND l.pool_id = c.pool_id AND l.cost_centre = c.cost_centre AND l.workload_type = c.workload_type
        AND l.model = c.model AND l.bucket = c.bucket AND coalesce(l.team_id, 0) = coalesce(c.team_id, 0)
        AND coalesce(l.project_id, 0) = coalesce(c.project_id, 0)
        AND coalesce(l.corrected_month, %(month)s) = CASE WHEN c.start >= %(start)s THEN %(month)s
            ELSE (SELECT m.month FROM corrected m WHERE c.start >= m.first AND c.start < m.last) END
    LEFT JOIN invoices i ON i.cost_centre = c.cost_centre AND i.currency = l.currency AND NOT l.showback
    LEFT JOIN telemetry_pricefactor pf ON pf.id = c.priority_factor_id
    LEFT JOIN telemetry_pricefactor tf ON tf.id = c.type_factor_id
    WHERE c.month = %(month)s AND c.id >= %(low)s AND c.id < %(high)s AND c.bucket = ANY(%(buckets)s)
        {f"AND c.id IN ({visible})" if visible else ""}
    ORDER BY c.id"""


def other_charges_sql(columns: Iterable[FocusColumn], source: FocusSource) -> str:
    """Return the query for shared idle time, for adjustments, and for the rounding of invoices."""
    wanted = tuple(columns)
    return f"""WITH {_LOOKUPS},
    idle AS (
        SELECT row_number() OVER (ORDER BY l.id) AS place, {select_list(wanted, idle_share_values(source))}
        FROM telemetry_statementline l
        LEFT JOIN invoices i ON i.cost_centre = l.cost_centre AND i.currency = l.currency AND NOT l.showback
        LEFT JOIN corrected m ON m.month = l.corrected_month {_NAMED}
        WHERE l.statement_id = %(statement)s AND l.id = ANY(%(idle_lines)s)),
    adjustments AS (
        SELECT 1000000 + row_number() OVER (ORDER BY a.id) AS place,
            {select_list(wanted, adjustment_values(source))}
        FROM telemetry_adjustment a
        JOIN telemetry_chargecell cell ON cell.id = a.cell_id
        JOIN telemetry_statementline l ON l.id = cell.line_id
        LEFT JOIN telemetry_charge c ON c.id = a.charge_id
        LEFT JOIN invoices i ON i.cost_centre = a.cost_centre AND i.currency = a.currency AND NOT l.showback
            {_NAMED}
        WHERE a.statement_id = %(statement)s AND a.id = ANY(%(adjustments)s)),
    rounding AS (
        SELECT 2000000 + i.position AS place, {select_list(wanted, rounding_values(source))}
        FROM invoices i WHERE %(with_rounding)s)
    {_in_place(wanted, ("idle", "adjustments", "rounding"))}"""


def invoice_detail_sql(columns: Iterable[FocusColumn], source: FocusSource) -> str:
    """Return the query for the records of all invoices: one per statement line, and one per invoice for its
    rounding.
    """
    wanted = tuple(columns)
    return f"""WITH {_LOOKUPS},
    lines AS (
        SELECT row_number() OVER (ORDER BY i.position, l.id) AS place,
            {select_list(wanted, invoice_line_values(source))}
        FROM telemetry_statementline l
        JOIN invoices i ON i.cost_centre = l.cost_centre AND i.currency = l.currency
        LEFT JOIN corrected_invoices r
            ON r.month = l.corrected_month AND r.cost_centre = l.cost_centre AND r.currency = l.currency
        {_NAMED}
        WHERE l.statement_id = %(statement)s AND NOT l.shared_out AND NOT l.showback
            AND (l.idle_share OR l.bucket = ANY(%(invoiced)s))),
    rounding AS (
        SELECT 10000000 + i.position AS place, {select_list(wanted, invoice_rounding_values(source))}
        FROM invoices i)
    {_in_place(wanted, ("lines", "rounding"))}"""


def billing_period_sql(columns: Iterable[FocusColumn]) -> str:
    """Return the query for the one row of a billing period."""
    return f"SELECT {select_list(columns, billing_period_values())}"


def _in_place(columns: Iterable[FocusColumn], tables: Iterable[str]) -> str:
    names = ", ".join(f'"{column.name}"' for column in columns)
    rows = " UNION ALL ".join(f"SELECT * FROM {table}" for table in tables)
    return f"SELECT {names} FROM ({rows}) AS every_row ORDER BY place"
