"""Change the settings of security, such as the life of tokens and who needs a second factor."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.db import transaction

from portal import locks, policy
from portal.input_checks import InputChecks
from portal.models import LeaverWork, Organisation, User
from portal.services import audit
from portal.services.step_up import require_fresh_proof

MAX_TOKEN_DAYS = 3_650
MAX_STEP_UP_MINUTES = 720  # the life of a browser session
SECOND_FACTOR_FOR = ("nobody", "operators_and_finance", "everybody")
AUDITED = ("token_days", "separate_approver", "leaver_work", "second_factor_for", "step_up_minutes")


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
    second_factor_for: str | None = None,
    step_up_minutes: int | None = None,
    via: str = "web",
) -> Organisation:
    """Change the settings that are given.

    If ``separate_approver`` is None, the rule applies if two people have the role that decides.

    ``leaver_work`` is one of LeaverWork, and also counts for accounts that are closed already.
    ``second_factor_for`` names the people who must have a second factor. A proof of identity allows changes
    that need a fresh one for ``step_up_minutes``. A shorter life of tokens does not change existing tokens.
    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "security.change")
    require_fresh_proof(actor, "change_security_settings", now)
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
    if second_factor_for is not None:
        changes["second_factor_for"] = checks.choice(
            "second_factor_for", second_factor_for, SECOND_FACTOR_FOR
        )
    if step_up_minutes is not None:
        changes["step_up_minutes"] = checks.count(
            "step_up_minutes", step_up_minutes, 1, MAX_STEP_UP_MINUTES, "minutes"
        )
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
