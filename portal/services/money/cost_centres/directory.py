"""Maintain the directory of cost centres: codes, names, postal addresses and purchase order references."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.locks import lock_cost_centres
from portal.models import User
from portal.services import audit
from portal.wording.problems import cost_centre_problems
from scheduler.core.rejection import OperationRejected
from telemetry.cost_centres.payers import names_of_payers, paid_from
from telemetry.models import CostCentre

CODE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
MAX_NAME_LENGTH = 120
MAX_ADDRESS_LENGTH = 500
MAX_PURCHASE_ORDER_LENGTH = 80
ENTRY_FIELDS = ("name", "postal_address", "purchase_order")
MAX_NAMES = 5


def add_cost_centre(
    *,
    actor: User,
    code: str,
    now: datetime,
    name: str = "",
    postal_address: str = "",
    purchase_order: str = "",
    via: str = "web",
) -> CostCentre:
    """Add an entry to the directory. Raises Invalid, NotAllowed, OperationRejected if the code exists."""
    policy.require(actor, "cost_centre.change")
    checks = InputChecks()
    code = checks.pattern("code", code, CODE_PATTERN, cost_centre_problems.CODE_ALLOWED)
    entry = checked_entry(
        checks, {"name": name, "postal_address": postal_address, "purchase_order": purchase_order}
    )
    checks.done()
    with transaction.atomic():
        row, created = CostCentre.objects.get_or_create(code=code, defaults={**entry, "created_at": now})
        if not created:
            raise OperationRejected("cost_centre_exists", {"code": code}, field="code")
        after = {"code": code, **entry}
        audit.record(actor=actor, via=via, now=now, verb="add_cost_centre", target=row, after=after)
    return row


def change_cost_centre(
    *, actor: User, centre: CostCentre, now: datetime, via: str = "web", **changes: str
) -> CostCentre:
    """Change the name, the postal address or the purchase order reference of an entry.

    ``changes`` has the fields of ENTRY_FIELDS that change. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "cost_centre.change")
    checks = InputChecks()
    entry = checked_entry(checks, changes)
    checks.done()
    with transaction.atomic():
        row = lock_cost_centres([centre.code])[centre.code]
        before = audit.audited_fields(row, *entry)
        for field, value in entry.items():
            setattr(row, field, value)
        if before == entry:
            return row
        row.save(update_fields=[*entry])
        audit.record_change(
            actor=actor, via=via, now=now, verb="change_cost_centre", target=row, before=before, why=""
        )
    return row


def retire_cost_centre(
    *,
    actor: User,
    centre: CostCentre,
    retired_from: datetime | None,
    now: datetime,
    why: str = "",
    via: str = "web",
) -> CostCentre:
    """Retire a cost centre: from ``retired_from`` on, it pays for nothing.

    If ``retired_from`` is None, the retirement is withdrawn. Earlier charges and splits stay. Raises Invalid,
    NotAllowed. Raises OperationRejected if the cost centre pays for a project or a dedicated pool at
    ``retired_from`` or later. The error names the projects and pools.
    """
    policy.require(actor, "cost_centre.change")
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=300)
    if retired_from is not None:
        retired_from = checks.aware_datetime("retired_from", retired_from)
    checks.done()
    with transaction.atomic():
        row = lock_cost_centres([centre.code])[centre.code]
        payers = paid_from(row.code, retired_from) if retired_from is not None else set()
        if payers:
            names = names_of_payers(payers)
            numbers = {"code": row.code, "names": names[:MAX_NAMES], "count": len(names)}
            raise OperationRejected("cost_centre_pays", numbers, field="retired_from")
        before = audit.audited_fields(row, "retired_from")
        row.retired_from = retired_from
        row.save(update_fields=["retired_from"])
        audit.record_change(
            actor=actor, via=via, now=now, verb="retire_cost_centre", target=row, before=before, why=why
        )
    return row


def checked_entry(checks: InputChecks, given: dict[str, Any]) -> dict[str, str]:
    """Return the checked fields of an entry. A name may look like a formula."""
    limits = {
        "name": (MAX_NAME_LENGTH, False),
        "postal_address": (MAX_ADDRESS_LENGTH, True),
        "purchase_order": (MAX_PURCHASE_ORDER_LENGTH, False),
    }
    return {
        field: checks.text(field, value, least=0, most=limits[field][0], lines=limits[field][1])
        for field, value in given.items()
    }
