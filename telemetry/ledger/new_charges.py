"""Insert charge lines with COPY, from values that are not model instances.

A run inserts millions of lines. Building model instances would take longer than inserting the
lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from psycopg.types.json import Jsonb

from telemetry.ledger.row_copy import copy_new_rows
from telemetry.models import Charge

# Most lines have no numbers. Their text is a constant: to convert {} takes half as long as all other columns.
NO_NUMBERS = Jsonb({}, dumps=lambda _: b"{}")


class NewCharge(NamedTuple):
    """A charge line that is not inserted yet: the columns of ``Charge`` without the id."""

    pool_id: int
    month: date
    bucket: str
    day: date
    start: datetime
    end: datetime
    slots: int
    slot_seconds: int
    gpu_id: int
    model: str
    cost_centre: str
    share_percent: Decimal
    cost: Decimal
    charged: Decimal
    created_at: datetime
    allocation_id: int | None = None
    reservation_id: int | None = None
    workload_id: int | None = None
    team_id: int | None = None
    project_id: int | None = None
    user_id: int | None = None
    team_name: str = ""
    project_name: str = ""
    user_name: str = ""
    workload_name: str = ""
    workload_type: str = ""
    simulated: bool = False
    price_id: int | None = None
    priority_factor_id: int | None = None
    type_factor_id: int | None = None
    corrects_id: int | None = None
    reversal: bool = False
    cause_code: str = ""
    cause_numbers: Mapping[str, Any] | Jsonb = NO_NUMBERS


def insert_charge_lines(lines: Sequence[NewCharge]) -> list[int]:
    """Insert the lines, and return their ids in the order of the lines. The ids ascend.

    The caller holds ``lock_ledger``. Raises IntegrityError if a constraint or a guard refuses a line.
    """
    return copy_new_rows(Charge, NewCharge._fields, lines)
