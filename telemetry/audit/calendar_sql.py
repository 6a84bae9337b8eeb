"""Compute billing months and days in SQL, from the time zones that finance chose.

``CALENDAR_SQL`` is a list of common table expressions. ``calendar`` has a row for each billing day from
``first_day`` to the last day of ``month``: its number (days since 1970), its month, and its start and end in
seconds since 1970. Parameters: ``first_day`` and ``month``.
"""

from __future__ import annotations


def zone_of(month: str) -> str:
    """Return SQL for the time zone of a billing month."""
    return f"""coalesce((SELECT time_zone FROM telemetry_billingzone
        WHERE first_month <= {month} ORDER BY first_month DESC LIMIT 1), 'UTC')"""


def midnight(day: str, zone: str) -> str:
    """Return SQL for the first moment that begins a local day.

    If clocks are set back over midnight, a local day begins twice. PostgreSQL returns the second moment, so
    the query also tries earlier moments.
    """
    return f"""(SELECT min(moment) FROM generate_series(0, 12) AS quarter
        CROSS JOIN LATERAL (SELECT {day}::timestamp AT TIME ZONE {zone}
            - quarter * interval '15 minutes' AS moment) AS tried
        WHERE moment AT TIME ZONE {zone} >= {day}::timestamp)"""


def month_start(month: str) -> str:
    """Return SQL for the start of a billing month.

    It is the end of the previous month in the time zone of the previous month.
    """
    return midnight(month, zone_of(f"({month} - interval '1 month')::date"))


MONTH_BOUNDS_SQL = f"""
SELECT {month_start("%(month)s::date")}, {month_start("(%(month)s::date + interval '1 month')::date")}
"""

CALENDAR_SQL = f"""
billing_months AS MATERIALIZED (
    SELECT month::date, zone, {month_start("month::date")} AS low,
        {month_start("(month + interval '1 month')::date")} AS high
    FROM generate_series(date_trunc('month', %(first_day)s::timestamp), %(month)s::timestamp,
        interval '1 month') AS month
    CROSS JOIN LATERAL (SELECT {zone_of("month::date")} AS zone) AS of_month
),
calendar AS MATERIALIZED (
    SELECT day::date - date '1970-01-01' AS day, month,
        floor(extract(epoch FROM low))::bigint AS day_low,
        floor(extract(epoch FROM coalesce(lead(low) OVER (ORDER BY day), high)))::bigint AS day_high
    FROM (
        SELECT day, month, high, CASE WHEN day::date = month THEN low
            ELSE least(greatest({midnight("day", "zone")}, low), high) END AS low
        FROM billing_months
        CROSS JOIN generate_series(month::timestamp, month + interval '1 month' - interval '1 day',
            interval '1 day') AS day
    ) AS days_of_months
)
"""
