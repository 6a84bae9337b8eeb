"""Disable the triggers and plant faults in a closed month.

Count the faults that the audit or the digest finds.

Everything is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any

from django.db import connection, transaction

from benchmarks.money_month.bulk_load import as_owner

_COPY_SQL = """
INSERT INTO telemetry_charge ({columns}) SELECT {values} FROM telemetry_charge WHERE id = %s RETURNING id"""


def plant_and_find(month: date, now: datetime) -> dict[str, int]:
    """Return the numbers of planted and of caught faults.

    A fault in a line is caught if the audit names the line and the field. Four faults are planted in lines of
    different GPUs, so that one audit can find them all. The fifth fault is a wrong digest.
    """
    from telemetry.audit.ledger_audit import audit_ledger
    from telemetry.models import Statement
    from telemetry.money.signing.statement_verification import verify_statement

    faults: tuple[tuple[Callable[[int], int], str], ...] = (
        (_move_to_another_team, "team"),
        (_charge_twice, "used"),
        (_use_another_price, "price"),
        (_use_another_cost_centre, "cost centre"),
    )
    with _past_triggers():
        lines = _charged_lines(month, len(faults))
        planted = {(plant(line), field) for line, (plant, field) in zip(lines, faults, strict=True)}
        found = {(difference.line, difference.field) for difference in audit_ledger(month, now)}
        caught = len(planted & found)
    with _past_triggers(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE telemetry_statement SET digest = reverse(digest) WHERE month = %s AND digest <> ''",
            [month],
        )
        changed = Statement.objects.get(month=month)
        caught += bool(verify_statement(changed).problems)
    return {"planted_faults": len(faults) + 1, "caught": caught}


@contextmanager
def _past_triggers() -> Any:
    """Run the block in a transaction without the triggers of the ledger, and roll it back."""
    with transaction.atomic():
        with as_owner() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            for table in ("telemetry_charge", "telemetry_statement"):
                cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            yield
        transaction.set_rollback(True)


def _charged_lines(month: date, count: int) -> list[int]:
    """Return ``count`` lines of held time, each on a different GPU. They begin after noon on the 20th."""
    from telemetry.models import Charge

    lines = Charge.objects.filter(
        month=month, bucket="used", reversal=False, start__gt=f"{month:%Y-%m}-20T12:00:00Z", charged__gt=0
    ).exclude(reservation__isnull=False)
    return list(lines.order_by("gpu", "start").distinct("gpu").values_list("pk", flat=True)[:count])


def _copy_line(line: int, **changed: str) -> int:
    """Insert a copy of a line. ``changed`` are SQL expressions by column. Return the id of the copy."""
    from telemetry.models import Charge

    columns = [str(field.column) for field in Charge._meta.concrete_fields if field.column != "id"]
    values = [changed.get(column, f'"{column}"') for column in columns]
    with connection.cursor() as cursor:
        names = ", ".join(f'"{column}"' for column in columns)
        cursor.execute(_COPY_SQL.format(columns=names, values=", ".join(values)), [line])
        return int(cursor.fetchone()[0])


def _move_to_another_team(line: int) -> int:
    """Reverse a line and insert it again for another team. All sums of the month stay the same."""
    negative = {name: f"-{name}" for name in ("slots", "slot_seconds", "cost", "charged")}
    _copy_line(line, **negative, corrects_id="id", reversal="true")
    other = "(SELECT min(id) FROM scheduler_team WHERE id <> team_id)"
    return _copy_line(line, team_id=other, corrects_id="id")


def _charge_twice(line: int) -> int:
    """Insert a line a second time."""
    return _copy_line(line)


def _use_another_price(line: int) -> int:
    other = "SELECT p.id FROM telemetry_price p WHERE p.model = c.model AND p.id <> c.price_id"
    return _update(line, f"price_id = ({other} ORDER BY p.id LIMIT 1)")


def _use_another_cost_centre(line: int) -> int:
    return _update(
        line, "cost_centre = (SELECT max(code) FROM telemetry_costcentre o WHERE o.code <> c.cost_centre)"
    )


def _update(line: int, change: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE telemetry_charge c SET {change} WHERE id = %s", [line])
    return line
