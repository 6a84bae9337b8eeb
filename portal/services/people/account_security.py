"""Protect the account of another person during an incident. For operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Required, TypedDict, Unpack

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import ApiToken, User
from portal.services import audit
from portal.services.people.accounts import checked_email
from portal.services.people.leaving.stopping import stop_workload
from portal.services.people.password_links import password_link
from portal.services.people.sessions import end_sessions_of, revoke_tokens_of
from portal.services.step_up import require_fresh_proof
from portal.wording.problems import administration_problems
from scheduler.core.rejection import OperationRejected
from scheduler.models import Workload
from scheduler.state.states import WorkloadState


class ProtectingChange(TypedDict, total=False):
    """The arguments of a change that protects an account. ``revoke_tokens`` also revokes its API tokens."""

    actor: Required[User]
    user: Required[User]
    now: Required[datetime]
    revoke_tokens: bool
    why: str
    via: str


def end_sessions(**context: Unpack[ProtectingChange]) -> User:
    """End all sessions of a person, with their workspace sessions and entry codes.

    With ``revoke_tokens``, also revoke the person's API tokens. Raises Invalid, NotAllowed.
    """
    return _secure("end_sessions", context)


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
    require_fresh_proof(actor, "revoke_tokens", now)
    checks = InputChecks()
    why = checks.reason(why)
    with transaction.atomic():
        rows = ApiToken.objects.filter(user=user, revoked_at=None, expires_at__gt=now)
        in_force = list(rows.values_list("pk", flat=True))
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


def reset_password(**context: Unpack[ProtectingChange]) -> str:
    """Make the password of a person invalid, end all their sessions, and return a link for a new password.

    The link works once and for a limited time. Earlier links end. Raises Invalid, NotAllowed. Raises
    OperationRejected for a service account.
    """
    policy.require(context["actor"], "user.change")
    _reject_service_account(context["user"])

    def change(user: User) -> None:
        user.set_unusable_password()
        user.save(update_fields=["password"])

    return password_link(_secure("reset_password", context, change))


def reset_second_factor(**context: Unpack[ProtectingChange]) -> User:
    """Remove the second factor of a person with its recovery codes, and end all their sessions.

    Raises Invalid, NotAllowed.
    """

    def change(user: User) -> None:
        Authenticator.objects.filter(user=user).delete()

    return _secure("reset_second_factor", context, change)


def change_address(*, email: str, **context: Unpack[ProtectingChange]) -> User:
    """Change the e-mail address of a person, and end all their sessions.

    Raises Invalid, NotAllowed. Raises OperationRejected for a service account: it could then get a link for a
    password by mail.
    """
    policy.require(context["actor"], "user.change")
    _reject_service_account(context["user"])
    checks = InputChecks()
    email = checked_email(checks, email)
    checks.done()

    def change(user: User) -> None:
        user.email = email
        user.save(update_fields=["email"])
        EmailAddress.objects.filter(user=user).delete()  # sign-in and mails would use the old address, too

    return _secure("change_address", context, change, ("email",))


def stop_work(*, actor: User, user: User, now: datetime, why: str = "", via: str = "web") -> int:
    """Cancel the waiting work and stop the running work of a person. Return the number of workloads.

    Each workload is stopped in a transaction of its own, so that no lock is held for long. A repeated call
    does no harm. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "user.change")
    require_fresh_proof(actor, "stop_work", now)
    checks = InputChecks()
    why = checks.reason(why)
    checks.done()
    stopped = [row.name for row in work_of(user) if stop_workload(actor, row, now, why, via)]
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


def _reject_service_account(user: User) -> None:
    if user.is_service_account:
        raise OperationRejected("service_account_has_no_password", {"name": user.username})


def _secure(
    verb: str,
    context: ProtectingChange,
    change: Callable[[User], None] = lambda user: None,
    fields: tuple[str, ...] = (),
) -> User:
    """Carry out ``change``, end the sessions of the person, and write the audit record of ``verb``.

    ``fields`` are the audited fields of the account. Tokens are revoked if ``revoke`` is true.
    """
    actor, user, now = context["actor"], context["user"], context["now"]
    policy.require(actor, "user.change")
    require_fresh_proof(actor, verb, now)
    checks = InputChecks()
    why = checks.reason(context.get("why", ""))
    revoke = checks.flag("revoke_tokens", context.get("revoke_tokens", False))
    checks.done()
    with transaction.atomic():
        before: dict[str, Any] = audit.audited_fields(user, *fields)
        change(user)
        ended = end_sessions_of(user, now)
        revoked = revoke_tokens_of(user, now) if revoke else []
        after = {**audit.audited_fields(user, *fields), "ended_workspaces": ended, "revoked_tokens": revoked}
        audit.record(
            actor=actor,
            via=context.get("via", "web"),
            now=now,
            verb=verb,
            target=user,
            before=before or None,
            after=after,
            why=why,
        )
    return user
