"""Protect the account of another person during an incident. For operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import ApiToken, User
from portal.services import audit
from portal.services.people.accounts import checked_email
from portal.services.people.password_links import password_link
from portal.services.people.sessions import end_sessions_of, revoke_tokens_of
from portal.wording.problems import administration_problems
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected
from scheduler.models import Workload
from scheduler.state.states import WorkloadState


def end_sessions(
    *,
    actor: User,
    user: User,
    now: datetime,
    revoke_tokens: bool = False,
    why: str = "",
    via: str = "web",
) -> User:
    """End all sessions of a person, with their workspace sessions and entry codes.

    With ``revoke_tokens``, also revoke the person's API tokens. Raises Invalid, NotAllowed.
    """
    return _secure(actor, user, now, "end_sessions", revoke_tokens, why, via)


def revoke_tokens(
    *,
    actor: User,
    user: User,
    now: datetime,
    tokens: Sequence[int] | None = None,
    why: str = "",
    via: str = "web",
) -> list[str]:
    """Revoke API tokens of a person, and return their names. Workspaces that were opened with them end.

    ``tokens`` are ids; None or an empty list means all tokens in force. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "user.change")
    checks = InputChecks()
    why = _checked_why(checks, why)
    with transaction.atomic():
        in_force = list(ApiToken.objects.filter(user=user, revoked_at=None).values_list("pk", flat=True))
        unknown = [pk for pk in tokens or () if pk not in in_force]
        if unknown:
            allowed = ", ".join(map(str, sorted(in_force))) or "nothing, because no token is in force"
            problem = administration_problems.TOKENS_NOT_IN_FORCE.format(given=unknown[0], allowed=allowed)
            checks.note("tokens", unknown[0], problem)
        checks.done()
        names = revoke_tokens_of(user, now, tokens or None)
        audit.record(
            actor=actor, via=via, now=now, verb="revoke_tokens", target=user, after={"tokens": names}, why=why
        )
    return names


def reset_password(
    *,
    actor: User,
    user: User,
    now: datetime,
    revoke_tokens: bool = False,
    why: str = "",
    via: str = "web",
) -> str:
    """Make the password of a person invalid, end all their sessions, and return a link for a new password.

    The link works once and for a limited time. Earlier links end. Raises Invalid, NotAllowed. Raises
    OperationRejected for a service account.
    """
    policy.require(actor, "user.change")
    _reject_service_account(user)

    def change() -> None:
        user.set_unusable_password()
        user.save(update_fields=["password"])

    return password_link(_secure(actor, user, now, "reset_password", revoke_tokens, why, via, change))


def reset_second_factor(
    *,
    actor: User,
    user: User,
    now: datetime,
    revoke_tokens: bool = False,
    why: str = "",
    via: str = "web",
) -> User:
    """Remove the second factor of a person with its recovery codes, and end all their sessions.

    Raises Invalid, NotAllowed.
    """

    def change() -> None:
        Authenticator.objects.filter(user=user).delete()

    return _secure(actor, user, now, "reset_second_factor", revoke_tokens, why, via, change)


def change_address(
    *,
    actor: User,
    user: User,
    email: str,
    now: datetime,
    revoke_tokens: bool = False,
    why: str = "",
    via: str = "web",
) -> User:
    """Change the e-mail address of a person, and end all their sessions.

    Raises Invalid, NotAllowed. Raises OperationRejected for a service account: it could then get a link for a
    password by mail.
    """
    policy.require(actor, "user.change")
    _reject_service_account(user)
    checks = InputChecks()
    email = checked_email(checks, email)
    checks.done()

    def change() -> None:
        user.email = email
        user.save(update_fields=["email"])
        EmailAddress.objects.filter(user=user).delete()  # sign-in and mails would use the old address, too

    return _secure(actor, user, now, "change_address", revoke_tokens, why, via, change, ("email",))


def stop_work(*, actor: User, user: User, now: datetime, why: str = "", via: str = "web") -> int:
    """Stop all work of a person: cancel what waits, and stop what runs. Return the number of workloads.

    Each workload is stopped in a transaction of its own, so that no lock is held for long. A repeated call
    does no harm. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "user.change")
    return write_stop_of_work(actor=actor, user=user, now=now, why=why, via=via)


def write_stop_of_work(
    *, actor: User | None, user: User, now: datetime, why: str = "", via: str = "web"
) -> int:
    """Stop all work of a person. The caller has checked the permission. Raises Invalid."""
    checks = InputChecks()
    why = _checked_why(checks, why)
    checks.done()
    stopped = [row.name for row in work_of(user) if _stop(actor, row, now, why, via)]
    audit.record(
        actor=actor,
        via=via,
        now=now,
        verb="stop_work",
        target=user,
        after={"workloads": len(stopped), "names": stopped[:20]},
        why=why,
    )
    return len(stopped)


def work_of(user: User) -> list[Workload]:
    """Return the work of a person that has not ended, oldest first."""
    rows = Workload.objects.filter(owner=user).exclude(state=WorkloadState.ENDED)
    return list(rows.select_related("pool", "project__team").order_by("pk"))


def _stop(actor: User | None, workload: Workload, now: datetime, why: str, via: str) -> bool:
    with transaction.atomic():
        before = audit.audited_fields(workload, "state")
        if not scheduling.cancel_workload(workload, now=now):
            return False
        workload.refresh_from_db()
        after = audit.audited_fields(workload, "state", "stop_requested")
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="cancel_workload",
            target=workload,
            before=before,
            after=after,
            why=why,
        )
    return True


def _reject_service_account(user: User) -> None:
    if user.is_service_account:
        raise OperationRejected("service_account_has_no_password", {"name": user.username})


def _secure(
    actor: User,
    user: User,
    now: datetime,
    verb: str,
    revoke: bool,
    why: str,
    via: str,
    change: Callable[[], None] = lambda: None,
    fields: tuple[str, ...] = (),
) -> User:
    """Carry out ``change``, end the sessions of the person, and write the audit record of ``verb``.

    ``fields`` are the audited fields of the account. Tokens are revoked if ``revoke`` is true.
    """
    policy.require(actor, "user.change")
    checks = InputChecks()
    why = _checked_why(checks, why)
    revoke = checks.flag("revoke_tokens", revoke)
    checks.done()
    with transaction.atomic():
        before: dict[str, Any] = audit.audited_fields(user, *fields)
        change()
        ended = end_sessions_of(user, now)
        revoked = revoke_tokens_of(user, now) if revoke else []
        after = {**audit.audited_fields(user, *fields), "ended_workspaces": ended, "revoked_tokens": revoked}
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb=verb,
            target=user,
            before=before or None,
            after=after,
            why=why,
        )
    return user


def _checked_why(checks: InputChecks, why: str) -> str:
    return checks.text("why", why, least=0, most=1000, lines=True)
