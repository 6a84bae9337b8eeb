"""Compute the digest of a closed month.

Format 1 is the SHA-256 of the statement's CSV. Months that version 0.1 closed have this format.

Format 2 is the SHA-256 of a text. Each line of the text is a JSON array in UTF-8, followed by a line feed.
Array elements are separated by a comma and a space, and letters outside ASCII are not escaped. The lines are:

1. ``["statement", 2, month, start, end, time zone, currency, payer of idle time, closed at, id of the closer,
   proposed at, id of the proposer, totals, previous month, digest of the previous month]``
2. ``["price", ...]``: each price that a charge line of the month refers to
3. ``["factor", ...]``: each price factor that a charge line of the month refers to
4. ``["cost centre", ...]``: each share of a split that existed at the close and is valid from a time before
   the month's end
5. ``["line", ...]``: each line of the statement
6. ``["document", ...]``: the statement of each cost centre
7. ``["adjustment", ...]``: each credit and manual adjustment of the month, also the rejected ones
8. ``["showback", ...]``: the id of each line whose charge is not invoiced
9. ``["charge", ...]``: each charge line of the month

Each group is in order of id. Amounts are strings with all their decimals. Times are strings with the seconds
since 1970 (UTC) and six decimals. The columns stand in the order of ``ROWS_SQL``.

The previous month is the month that was closed last before this month. So the digests are a chain: if an old
month is changed or removed, the digest of the next month shows it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db import connection

from telemetry.models import Statement, StatementState
from telemetry.money.billing_months import month_bounds
from telemetry.money.statement_export import statement_csv

DIGEST_FORMAT = 2
ROWS_PER_FETCH = 20_000


def _time(column: str) -> str:
    return f"extract(epoch FROM {column})::numeric(20, 6)::text"


ROWS_SQL = (
    f"""
    SELECT json_build_array('price', id, pool_id, model, currency, cost_per_gpu_hour::text,
        price_per_gpu_hour::text, {_time("valid_from")}, note, {_time("created_at")})::text
    FROM telemetry_price WHERE id IN (SELECT price_id FROM telemetry_charge WHERE month = %(month)s)
        ORDER BY id
    """,
    f"""
    SELECT json_build_array('factor', id, pool_id, priority, workload_type, factor::text,
        {_time("valid_from")}, note, {_time("created_at")})::text
    FROM telemetry_pricefactor WHERE id IN (
        SELECT unnest(ARRAY[priority_factor_id, type_factor_id]) FROM telemetry_charge
        WHERE month = %(month)s)
    ORDER BY id
    """,
    f"""
    SELECT json_build_array('cost centre', id, project_id, pool_id, code, percent::text,
        {_time("valid_from")}, {_time("created_at")})::text
    FROM telemetry_costcentreshare WHERE valid_from < %(end)s AND created_at <= %(closed_at)s ORDER BY id
    """,
    """
    SELECT json_build_array('line', id, pool_id, pool_name, cost_centre, team_id, team_name, project_id,
        project_name, workload_type, model, bucket, corrected_month, idle_share, shared_out, slot_seconds,
        gpu_hours::text, covered_share::text, used_share::text, currency, charged_cents::text,
        cost_cents::text)::text
    FROM telemetry_statementline WHERE statement_id = %(statement)s ORDER BY id
    """,
    """
    SELECT json_build_array('document', id, number, cost_centre, currency, sequence, name, postal_address,
        purchase_order, issuer, tax_text, due_on, total::text, budget::text)::text
    FROM telemetry_costcentrestatement WHERE statement_id = %(statement)s ORDER BY id
    """,
    # Months that were closed before adjustments existed have none, so their text is the same.
    f"""
    SELECT json_build_array('adjustment', id, number, kind, cost_centre, team_id, project_id, currency,
        amount::text, reason, credited_id, line_id, charge_id, withdraws_id, day, author_id, author_name,
        {_time("proposed_at")}, state, decided_by_id, decided_by_name, {_time("decided_at")},
        cell_id, decision_note)::text
    FROM telemetry_adjustment WHERE statement_id = %(statement)s ORDER BY id
    """,
    """
    SELECT json_build_array('showback', id)::text
    FROM telemetry_statementline WHERE statement_id = %(statement)s AND showback ORDER BY id
    """,
    f"""
    SELECT json_build_array('charge', id, pool_id, bucket, day, {_time("start")}, {_time('"end"')}, slots,
        slot_seconds,
        gpu_id, model, allocation_id, reservation_id, workload_id, team_id, project_id, user_id, team_name,
        project_name, user_name, workload_name, workload_type, cost_centre, share_percent::text, price_id,
        priority_factor_id, type_factor_id, cost::text, charged::text,
        corrects_id, reversal, cause_code, cause_numbers, simulated, {_time("created_at")})::text
    FROM telemetry_charge WHERE month = %(month)s ORDER BY id
    """,
)


def digest_of(statement: Statement) -> str:
    """Return the digest of a closing or closed month, computed from its rows in the statement's format."""
    if statement.digest_format == 1:
        return hashlib.sha256(statement_csv(statement.month).encode()).hexdigest()
    if statement.digest_format != DIGEST_FORMAT:
        raise ValueError(f"digest_format: {statement.digest_format}; allowed: 1 or {DIGEST_FORMAT}")
    digest = hashlib.sha256()
    for text in digest_lines(statement):
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def previous_month(month: date) -> date | None:
    """Return the month that was closed last, except ``month`` itself. None if no other month is closed."""
    closed = Statement.objects.filter(state=StatementState.CLOSED).exclude(month=month)
    return closed.order_by("-closed_at", "-month").values_list("month", flat=True).first()


def digest_lines(statement: Statement) -> Iterator[str]:
    """Yield the lines of the text whose SHA-256 is the digest of format 2."""
    yield _header(statement)
    values: dict[str, Any] = {
        "month": statement.month,
        "statement": statement.pk,
        "end": month_bounds(statement.month)[1],
        "closed_at": statement.closed_at,
    }
    for rows_sql in ROWS_SQL:
        # A month may have millions of lines. A cursor on the server returns them in parts.
        with connection.chunked_cursor() as cursor:
            cursor.execute(rows_sql, values)
            while rows := cursor.fetchmany(ROWS_PER_FETCH):
                yield from (row[0] for row in rows)


def _seconds(moment: datetime | None) -> str:
    """Return the seconds since 1970 with six decimals; an empty text for None."""
    return f"{Decimal(moment.timestamp()):.6f}" if moment else ""


def _header(statement: Statement) -> str:
    before = statement.previous_month
    previous = Statement.objects.filter(month=before).first() if before is not None else None
    header: list[Any] = [
        "statement",
        DIGEST_FORMAT,
        f"{statement.month:%Y-%m}",
        _seconds(statement.starts_at),
        _seconds(statement.ends_at),
        statement.time_zone,
        statement.currency,
        statement.idle_payer,
        _seconds(statement.closed_at),
        statement.closed_by_id,
        _seconds(statement.proposed_at),
        statement.proposed_by_id,
        json.dumps(statement.totals, sort_keys=True, ensure_ascii=False),
        f"{previous.month:%Y-%m}" if previous else "",
        previous.digest if previous else "",
    ]
    return json.dumps(header, ensure_ascii=False)
