"""Change accounts, roles, passwords and preferences."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from portal import locks, policy
from portal.errors import Invalid
from portal.input_checks import EMAIL_PATTERN, InputChecks
from portal.models import Notification, Organisation, User, WorkHandover
from portal.services import audit
from portal.services.money.billing_currency import checked_currency, set_first_currency
from portal.services.people import setup_code as setup_codes
from portal.services.people.service_accounts import service_account_rejection
from portal.services.people.sessions import end_sessions_of, revoke_tokens_of
from portal.services.step_up import require_fresh_proof
from portal.sign_in.client import ClientDetails
from portal.wording.problems import administration_problems
from portal.wording.refusal_texts import rejection_sentence
from scheduler.core.rejection import OperationRejected

THEMES = ("system", "light", "dark")
ROLES = ("operator", "finance", "auditor")


SecondFactorChange = Literal[
    "turn_on_second_factor", "turn_off_second_factor", "make_recovery_codes", "add_passkey", "remove_passkey"
]


def create_user(
    *,
    actor: User,
    username: str,
    email: str,
    now: datetime,
    full_name: str = "",
    operator: bool = False,
    finance: bool = False,
    auditor: bool = False,
    via: str = "web",
) -> User:
    """Create an account without a password. An auditor cannot be an operator or in finance.

    The person sets the first password with the one-time link of ``password_links.password_link``. Raises
    Invalid, OperationRejected, NotAllowed.
    """
    policy.require(actor, "user.change")
    checks = InputChecks()
    flags = checked_roles(checks, {"operator": operator, "finance": finance, "auditor": auditor})
    if any(flags.values()):
        require_fresh_proof(actor, "create_user", now)
    with transaction.atomic():
        user = _create_user(checks, username, email, full_name, flags)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="create_user",
            target=user,
            after=audit.audited_fields(user, "username", "email", *ROLES),
        )
    return user


def change_user(
    *,
    actor: User,
    user: User,
    now: datetime,
    operator: bool | None = None,
    finance: bool | None = None,
    auditor: bool | None = None,
    active: bool | None = None,
    revoke_tokens: bool = False,
    why: str = "",
    via: str = "web",
) -> User:
    """Change the roles of an account, or close or open the account.

    An argument of None keeps the current value. A change ends all sessions of the person. If the account is
    closed, or with ``revoke_tokens``, its API tokens are revoked. Raises Invalid, NotAllowed. Raises
    OperationRejected if no operator would remain, or if a service account would get a role.
    """
    policy.require(actor, "user.change")
    require_fresh_proof(actor, "change_user", now)
    return write_user_change(
        actor=actor,
        user=user,
        now=now,
        operator=operator,
        finance=finance,
        auditor=auditor,
        active=active,
        revoke_tokens=revoke_tokens,
        why=why,
        via=via,
    )


def write_user_change(
    *,
    actor: User | None,
    user: User,
    now: datetime,
    operator: bool | None = None,
    finance: bool | None = None,
    auditor: bool | None = None,
    active: bool | None = None,
    revoke_tokens: bool = False,
    why: str = "",
    via: str = "web",
) -> User:
    """Write the change of ``change_user``. The caller has checked the permission.

    Without an actor, the portal itself makes the change. Raises Invalid, OperationRejected.
    """
    checks = InputChecks()
    given = {"operator": operator, "finance": finance, "auditor": auditor}
    flags = checked_roles(
        checks, {name: getattr(user, name) if flag is None else flag for name, flag in given.items()}
    )
    if user.service_team is not None and any(flags.values()):
        raise service_account_rejection(user)
    open_ = user.is_active if active is None else checks.flag("active", active)
    revoke_tokens = checks.flag("revoke_tokens", revoke_tokens)
    why = checks.reason(why)
    checks.done()
    with transaction.atomic():
        # Two operators may give up their role at once. With the lock, the second sees the first change.
        locks.lock_organisation()
        reject_if_last_operator(user, stays=flags["operator"] and open_)
        user.refresh_from_db()
        before = audit.audited_fields(user, "is_active", *ROLES)
        User.objects.filter(pk=user.pk).update(is_active=open_, **flags)
        if active:
            # The person is in charge of their own work again.
            User.objects.filter(pk=user.pk).update(leaver_work=None)
            WorkHandover.objects.filter(workload__owner=user).delete()
        user.refresh_from_db()
        after = audit.audited_fields(user, "is_active", *ROLES)
        if before != after:
            end_sessions_of(user, now)
        revoked = revoke_tokens_of(user, now) if revoke_tokens or not open_ else []
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="change_user",
            target=user,
            before=before,
            after={**after, **({"revoked_tokens": revoked} if revoked else {})},
            why=why,
        )
    return user


def change_name(
    *, actor: User, user: User, full_name: str, now: datetime, why: str = "", via: str = "web"
) -> User:
    """Change the full name of a person. Raises Invalid, NotAllowed."""
    policy.require(actor, "user.change")
    checks = InputChecks()
    full_name = checks.text("full_name", full_name, least=0, most=150)
    checks.done()
    with transaction.atomic():
        before = {"full_name": user.get_full_name()}
        User.objects.filter(pk=user.pk).update(first_name=full_name, last_name="")
        user.refresh_from_db(fields=["first_name", "last_name"])
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="change_name",
            target=user,
            before=before,
            after={"full_name": full_name},
            why=why,
        )
    return user


def reject_if_last_operator(user: User, *, stays: bool) -> None:
    """Raise OperationRejected if no operator would remain. ``stays``: the user remains an operator."""
    others = User.objects.filter(operator=True, is_active=True, auditor=False).exclude(pk=user.pk)
    if not stays and not others.exists():
        raise OperationRejected("last_operator", {"name": user.username}, field="operator")


def set_password(
    *,
    user: User,
    password: str,
    now: datetime,
    client: ClientDetails,
    by_link: bool = False,
    revoke_tokens: bool = False,
    via: str = "web",
) -> None:
    """Set the new password of a person who changes it themselves, and end all their sessions.

    ``by_link`` means that the person used a one-time link, and not the old password. The form has validated
    the password. The audit record shows that the password changed, but not the password.
    """
    with transaction.atomic():
        user.set_password(password)
        user.save(update_fields=["password"])
        end_sessions_of(user, now)
        revoked = revoke_tokens_of(user, now) if revoke_tokens else []
        audit.record(
            actor=user,
            via=via,
            now=now,
            verb="set_password_by_link" if by_link else "set_password",
            target=user,
            after={"address": client.address, "agent": client.agent, "revoked_tokens": revoked},
        )


def change_own_second_factor(
    *, user: User, change: SecondFactorChange, now: datetime, via: str = "web"
) -> None:
    """Record that a person changed their own second factor, and end all their sessions."""
    with transaction.atomic():
        end_sessions_of(user, now)
        audit.record(actor=user, via=via, now=now, verb=change, target=user)


def first_run(
    *,
    organisation: str,
    time_zone: str,
    currency: str,
    username: str,
    email: str,
    password: str,
    setup_code: str,
    now: datetime,
    via: str = "web",
) -> User:
    """Set up the organisation and create its first operator.

    ``setup_code`` is the one-time code of ``setup_code.new_setup_code``. Raises Invalid, also for another
    code. Raises OperationRejected if an account exists.
    """
    checks = InputChecks()
    organisation = checks.text("organisation", organisation)
    time_zone = checks.time_zone("time_zone", time_zone)
    currency = checked_currency(checks, currency)
    with transaction.atomic():
        # The row serves as a lock. If two people do this at the same time, the second sees the first account.
        Organisation.objects.get_or_create(pk=1, defaults={"name": organisation or "gpupool"})
        row = locks.lock_organisation()
        if row is None or User.objects.exists():
            raise OperationRejected("accounts_exist")
        if not setup_codes.is_setup_code(setup_code):
            checks.note("setup_code", "", administration_problems.SETUP_CODE_WRONG)
        roles = {"operator": True, "finance": False, "auditor": False}
        user = _create_user(checks, username, email, "", roles, password=password)
        setup_codes.forget_setup_code()
        Organisation.objects.filter(pk=1).update(name=organisation, time_zone=time_zone)
        set_first_currency(currency, now)
        row.refresh_from_db()
        audit.record(
            actor=user,
            via=via,
            now=now,
            verb="first_run",
            target=row,
            after={**audit.audited_fields(row, "name", "time_zone"), "currency": currency},
        )
    return user


def set_preferences(
    *, actor: User, now: datetime, time_zone: str | None = None, theme: str | None = None, via: str = "web"
) -> User:
    """Set the time zone and the theme of the actor. Raises Invalid, NotAllowed.

    An argument of None keeps the current value. If the time zone is empty, pages use the browser's time zone.
    If the browser's time zone is unknown, they use the organisation's.
    """
    policy.require(actor, "own.change")
    checks = InputChecks()
    changes: dict[str, Any] = {}
    if time_zone is not None:
        changes["time_zone"] = checks.time_zone("time_zone", time_zone) if time_zone != "" else ""
    if theme is not None:
        changes["theme"] = checks.choice("theme", theme, THEMES)
    checks.done()
    if changes:
        with transaction.atomic():
            before = audit.audited_fields(actor, *changes)
            User.objects.filter(pk=actor.pk).update(**changes)
            actor.refresh_from_db(fields=list(changes))
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="set_preferences",
                target=actor,
                before=before,
                after=changes,
            )
    return actor


def read_notifications(*, actor: User, now: datetime, ids: list[int] | None = None, via: str = "web") -> int:
    """Mark notifications of the actor as read, and return how many of them were unread.

    If ``ids`` is None, all notifications are marked. No audit record is written.
    """
    policy.require(actor, "own.change")
    unread = Notification.objects.filter(user=actor, read_at=None)
    if ids is not None:
        unread = unread.filter(pk__in=ids)
    return unread.update(read_at=now)


def checked_roles(checks: InputChecks, given: dict[str, Any]) -> dict[str, bool]:
    """Return the roles if they are valid together; otherwise note the problem."""
    flags = {name: checks.flag(name, value) for name, value in given.items()}
    if flags["auditor"] and (flags["operator"] or flags["finance"]):
        checks.note(
            "auditor",
            True,
            administration_problems.AUDITOR_HAS_OTHER_ROLE,
        )
    return flags


def checked_email(checks: InputChecks, email: Any) -> str:
    """Return the e-mail address if it is valid; otherwise note the problem."""
    return checks.pattern("email", email, EMAIL_PATTERN, "an address such as ada@example.org")


def _create_user(
    checks: InputChecks,
    username: Any,
    email: Any,
    full_name: Any,
    flags: dict[str, bool],
    password: str | None = None,
) -> User:
    """Save a new account. ``password`` is None if the person sets it later with a link."""
    username = checks.user_name("username", username)
    email = checked_email(checks, email)
    full_name = checks.text("full_name", full_name, least=0, most=150)
    user = User(username=username, email=email, first_name=full_name, **flags)
    if password is not None:
        _check_password(checks, password, user)
    checks.done()
    if User.objects.filter(username__iexact=username).exists():
        raise Invalid(
            {"username": rejection_sentence("username_is_taken", {"name": username})},
            {"username": username},
        )
    user.set_password(password)
    try:
        with transaction.atomic():
            user.save(force_insert=True)
    except IntegrityError:
        raise OperationRejected("username_is_taken", {"name": username}, field="username") from None
    return user


def _check_password(checks: InputChecks, password: str, user: User) -> None:
    if not isinstance(password, str) or len(password) > 1000 or "\0" in password:
        checks.note("password", "", administration_problems.PASSWORD_LENGTH)
        return
    try:
        validate_password(password, user)
    except ValidationError as problem:
        checks.note("password", "", " ".join(problem.messages))
