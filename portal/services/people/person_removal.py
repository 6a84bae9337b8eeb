"""Remove a person who has left: end their access, and settle their work, reservations and requests.

The rules are in docs/operations.md, "When a person or a team leaves".
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import ClaimGrant, LeaverWork, Membership, User
from portal.services import audit
from portal.services.people import accounts
from portal.services.people.leaving.leaver_work import apply_policy, policy_for
from portal.services.people.service_accounts import release_service_accounts
from portal.services.removal_effect import withdraw_submissions
from portal.services.step_up import require_fresh_proof


def remove_person(
    *,
    actor: User,
    user: User,
    now: datetime,
    work: str | None = None,
    why: str = "",
    via: str = "web",
) -> User:
    """Close an account, take its roles and teams, and withdraw its requests. Its history stays.

    Sessions, workspaces and API tokens end at once. ``work`` is what happens to the person's work and
    reservations, one of LeaverWork; None means as the settings of the installation say. The account is
    closed first, and a repeated call completes a removal that was interrupted.

    Raises Invalid, NotAllowed. Raises OperationRejected if no operator would remain.
    """
    policy.require(actor, "user.change")
    require_fresh_proof(actor, "remove_person", now)
    return write_removal(actor=actor, user=user, now=now, work=work, why=why, via=via)


def write_removal(
    *,
    actor: User | None,
    user: User,
    now: datetime,
    work: str | None = None,
    why: str = "",
    via: str = "web",
) -> User:
    """Remove a person. The caller has checked the permission.

    Without an actor, the portal itself removes the person. Raises Invalid, OperationRejected.
    """
    checks = InputChecks()
    if work is not None:
        work = checks.choice("work", work, LeaverWork.values)
    why = checks.reason(why)
    checks.done()
    with transaction.atomic():
        memberships = Membership.objects.filter(user=user).order_by("team__slug")
        rows = list(memberships.select_related("team"))
        before: dict[str, Any] = {"teams": [f"{row.team.slug} ({row.role})" for row in rows]}
        accounts.write_user_change(
            actor=actor,
            user=user,
            now=now,
            operator=False,
            finance=False,
            auditor=False,
            active=False,
            why=why,
            via=via,
        )
        User.objects.filter(pk=user.pk).update(leaver_work=work)
        user.refresh_from_db(fields=["leaver_work"])
        withdraw_submissions(author=user)
        ClaimGrant.objects.filter(user=user).delete()
        released = [name for row in rows for name in release_service_accounts(row.team, user)]
        before |= {"service_accounts": released} if released else {}
        Membership.objects.filter(user=user).delete()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="remove_person",
            target=user,
            before=before,
            after={"work": str(policy_for(user))},
            why=why,
        )
    apply_policy(user, now, actor=actor, why=why, via=via)
    return user
