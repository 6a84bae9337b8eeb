"""Set the Unix identities of people and service accounts, and take them from identity providers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from portal import policy
from portal.errors import Invalid
from portal.input_checks import InputChecks, display_value
from portal.models import User
from portal.services import audit
from portal.sign_in.oidc.providers import ProviderSettings
from portal.wording.people import unix_texts
from portal.wording.refusal_texts import refusal_sentence
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected
from scheduler.models import UnixIdentity

FIELDS = ("uid", "gid", "groups", "name", "home")
MAX_ID = 2**31 - 2
# Numbers that file servers and user namespaces give to users without an identity.
NOBODY_IDS = (65_534, 65_535)
TEAM_NUMBERS = 30_000  # the numbers from GPUPOOL_FIRST_TEAM_USER on that agents give to teams by default
MAX_GROUPS = 200
MAX_HOME_LENGTH = 400
UNIX_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,99}", re.ASCII)
HOME_PATH = re.compile(r"(/[^/\x00-\x1f]+)+")


def set_unix_identity(
    *,
    actor: User,
    user: User,
    uid: int,
    now: datetime,
    gid: int | None = None,
    groups: list[int] | None = None,
    name: str = "",
    home: str = "",
    why: str = "",
    via: str = "web",
) -> UnixIdentity:
    """Set the Unix identity of a person or a service account. New work has it.

    A missing gid is the uid, a missing name is the user name, and a missing home is /home/NAME. Providers no
    longer change an identity that an operator has set. Raises Invalid, OperationRejected, NotAllowed.
    """
    policy.require(actor, "user.change")
    checks = InputChecks()
    given = {"uid": uid, "gid": gid, "groups": groups, "name": name, "home": home}
    values = _checked(checks, user, given)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    return _store(user, values, "", now, {"actor": actor, "via": via, "why": why})


def remove_unix_identity(*, actor: User, user: User, now: datetime, why: str = "", via: str = "web") -> User:
    """Remove the Unix identity of a person. A provider may set it again at the next sign-in.

    Raises Invalid, OperationRejected, NotAllowed.
    """
    policy.require(actor, "user.change")
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        before = _audited(UnixIdentity.objects.filter(person=user).first())
        if not scheduling.delete_unix_identity(user):
            raise OperationRejected("unix_identity_is_missing", {"name": user.username})
        audit.record(
            actor=actor, via=via, now=now, verb="remove_unix_identity", target=user, before=before, why=why
        )
    return user


def take_unix_identity(
    *, user: User, provider: str, provider_name: str, attributes: Mapping[str, Any], now: datetime
) -> str:
    """Take the Unix identity of a person from attributes of an identity provider. Every provider calls this.

    ``attributes`` has values of FIELDS as the provider gives them: numbers may be text, and an attribute with
    several values is a list. Nothing happens without a uid, or if an operator has set the identity. Return a
    sentence if the identity is refused, which is also audited; otherwise an empty string. A refusal prevents
    no sign-in.
    """
    if attributes.get("uid") in (None, "", []):
        return ""
    present = UnixIdentity.objects.filter(person=user).first()
    if present is not None and not present.provider:
        return ""
    checks = InputChecks()
    values = _checked(checks, user, {name: _plain_value(name, attributes.get(name)) for name in FIELDS})
    try:
        checks.done()
        if present is None or present.as_run_value() != values or present.provider != provider:
            _store(user, values, provider, now, {"actor": None, "via": "program", "why": ""})
    except (Invalid, OperationRejected) as refused:
        problem = (
            " ".join(refused.fields.values()) if isinstance(refused, Invalid) else refusal_sentence(refused)
        )
        why = unix_texts.REFUSED_BY_PROVIDER.format(provider=provider_name, problem=problem)
        audit.record(
            actor=None,
            via="program",
            now=now,
            verb="refuse_unix_identity",
            target=user,
            after={"provider": provider},
            why=why[:1000],
        )
        return why
    return ""


def take_from_claims(
    *, user: User, provider: ProviderSettings, claims: Mapping[str, Any], now: datetime
) -> str:
    """Take the Unix identity from the claims that the settings of an OpenID Connect provider name."""
    named = {name: claims.get(claim) for name, claim in provider.unix_claims.items() if claim}
    return take_unix_identity(
        user=user, provider=provider.slug, provider_name=provider.name, attributes=named, now=now
    )


def _store(
    user: User, values: dict[str, Any], provider: str, now: datetime, cause: dict[str, Any]
) -> UnixIdentity:
    with transaction.atomic():
        before = _audited(UnixIdentity.objects.filter(person=user).first())
        row = scheduling.store_unix_identity(user, values=values, provider=provider, now=now)
        audit.record(
            **cause, now=now, verb="set_unix_identity", target=user, before=before, after=_audited(row)
        )
    return row


def _audited(row: UnixIdentity | None) -> dict[str, Any]:
    return {} if row is None else audit.audited_fields(row, *FIELDS, "provider")


def _checked(checks: InputChecks, user: User, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked values of FIELDS, with the defaults of missing values. Note the problems."""
    uid = _checked_id(checks, "uid", given["uid"])
    gid = uid if given["gid"] is None else _checked_id(checks, "gid", given["gid"])
    groups = given["groups"] or []
    if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
        message = unix_texts.NOT_NUMBERS.format(field="groups", given=display_value(groups), most=MAX_GROUPS)
        checks.note("groups", display_value(groups), message)
        groups = []
    groups = sorted({_checked_id(checks, "groups", group) for group in groups})
    name = checks.pattern("name", given["name"] or user.username, UNIX_NAME, unix_texts.NAME_ALLOWED)
    return {
        "uid": uid,
        "gid": gid,
        "groups": groups,
        "name": name,
        "home": _checked_home(checks, given["home"] or f"/home/{name}"),
    }


def _checked_id(checks: InputChecks, field: str, value: Any) -> int:
    first = settings.GPUPOOL_FIRST_TEAM_USER
    number = checks.count(field, value, settings.GPUPOOL_FIRST_PERSON_ID, MAX_ID)
    if number in NOBODY_IDS:
        checks.note(field, number, unix_texts.ID_OF_NOBODY.format(field=field, given=number))
    last = first + TEAM_NUMBERS - 1
    if first <= number <= last:
        text = unix_texts.ID_OF_TEAMS.format(field=field, given=number, first=first, last=last)
        checks.note(field, number, text)
    return number


def _checked_home(checks: InputChecks, value: Any) -> str:
    text = checks.pattern("home", value, HOME_PATH, unix_texts.HOME_ALLOWED)
    if text and ({"..", "."} & set(text.split("/")) or len(text) > MAX_HOME_LENGTH):
        given = display_value(text)
        checks.note(
            "home", given, unix_texts.HOME_INVALID.format(field="home", given=given, most=MAX_HOME_LENGTH)
        )
    return text


def _plain_value(name: str, value: Any) -> Any:
    """Return a value of a provider in the form of the service: numbers as int, missing values as None."""
    if name == "groups":
        values = value if isinstance(value, list | tuple) else str(value or "").replace(",", " ").split()
        return [_number(each) for each in values]
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    if name in ("uid", "gid"):
        return None if value in (None, "") else _number(value)
    return value if value is None or isinstance(value, str) else str(value)


def _number(value: Any) -> Any:
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) else value
