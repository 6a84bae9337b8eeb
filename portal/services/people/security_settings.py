"""Change the settings of security: the life of tokens, decisions of own requests, work of closed accounts."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.db import transaction

from portal import locks, policy
from portal.input_checks import InputChecks
from portal.models import LeaverWork, Organisation, User
from portal.services import audit

MAX_TOKEN_DAYS = 3_650
AUDITED = ("token_days", "separate_approver", "leaver_work")


def security_settings() -> Organisation:
    """Return the row with the settings. If there is no organisation yet, its values are the defaults."""
    return Organisation.objects.first() or Organisation()


def change_security_settings(
    *,
    actor: User,
    now: datetime,
    token_days: int | None = None,
    separate_approver: bool | Literal["unchanged"] | None = "unchanged",
    leaver_work: str | None = None,
    via: str = "web",
) -> Organisation:
    """Change the settings that are given.

    If ``separate_approver`` is None, the rule applies if two people have the role that decides.

    ``leaver_work`` is one of LeaverWork, and also counts for accounts that are closed already. A shorter life
    of tokens does not change existing tokens. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "security.change")
    checks = InputChecks()
    changes: dict[str, Any] = {}
    if token_days is not None:
        changes["token_days"] = checks.count("token_days", token_days, 1, MAX_TOKEN_DAYS, "days")
    if separate_approver != "unchanged":
        changes["separate_approver"] = (
            None if separate_approver is None else checks.flag("separate_approver", separate_approver)
        )
    if leaver_work is not None:
        changes["leaver_work"] = checks.choice("leaver_work", leaver_work, LeaverWork.values)
    checks.done()
    with transaction.atomic():
        Organisation.objects.get_or_create(pk=1, defaults={"name": "gpupool"})
        row = locks.lock_organisation()
        assert row is not None  # it was just found or created
        before = audit.audited_fields(row, *AUDITED)
        Organisation.objects.filter(pk=1).update(**changes)
        row.refresh_from_db()
        after = audit.audited_fields(row, *AUDITED)
        if before != after:
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="change_security_settings",
                target=row,
                before=before,
                after=after,
            )
    return row
