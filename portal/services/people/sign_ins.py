"""Record sign-ins and failed sign-ins, with their address, program and method.

Each event is in the audit log and in the log of the process. A typed user name that belongs to nobody is not
stored, because it may be a password that was typed into the wrong field.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import models, transaction

from portal.models import ApiToken, Organisation, TokenAddress, User
from portal.redis_state.sign_in_attempts import count_attempt
from portal.services import audit
from portal.sign_in.attempts import refused_identities
from portal.sign_in.client import ClientDetails

log = structlog.get_logger(__name__)

TOKEN_ADDRESS_UPDATE = timedelta(hours=1)  # the last use from an address is stored this often
TOKEN_ADDRESS_KEPT = timedelta(days=90)  # an address that was not used for so long is new again
MAX_RECENT_TOKEN_USES = 10_000

_recent_token_uses: dict[tuple[int, str], float] = {}  # end of the time in which a use is not looked up again


def record_sign_in(*, user: User, client: ClientDetails, method: str, now: datetime) -> None:
    """Record that a person signed in. ``method`` names the steps, such as ``password, totp``."""
    _record(user, "sign_in", client, now, method=method, by_user=True)


def record_sign_out(*, user: User, client: ClientDetails, now: datetime) -> None:
    """Record that a person signed out."""
    _record(user, "sign_out", client, now, by_user=True)


def record_failed_sign_in(
    *, accounts: Sequence[User], client: ClientDetails, method: str, now: datetime, delay: int = 0
) -> None:
    """Record an attempt that failed, for each account to which the given name belongs.

    ``delay`` is the number of seconds until the next attempt. A delay is recorded as a lockout.
    """
    for target in accounts or Organisation.objects.all():
        _record(target, "fail_sign_in", client, now, method=method)
        if delay:
            _record(target, "delay_sign_in", client, now, method=method, seconds=delay)


def record_refused_identity(
    *, account: User | None, client: ClientDetails, provider: str, code: str, text: str, now: datetime
) -> None:
    """Record a sign-in with an identity provider that was refused. ``account`` is the person, if known.

    Anybody can send answers that are refused, and audit records are kept for ever. So after many refusals
    from one address, further refusals are only logged. Nobody's sign-in is delayed.
    """
    if count_attempt([refused_identities(client.network)]).refused:
        log.warning("identity refused again", address=client.address, provider=provider, code=code)
        return
    for target in [account] if account else Organisation.objects.all():
        _record(target, "refuse_identity", client, now, method=provider, code=code, text=text)


def record_early_attempt(*, accounts: Sequence[User], client: ClientDetails, seconds: int) -> None:
    """Log an attempt during a delay. The audit log has the start of the delay only."""
    names = [user.username for user in accounts]
    log.warning(
        "sign-in refused during a delay",
        users=names,
        address=client.address,
        agent=client.agent,
        wait=seconds,
    )


def record_reset_request(*, user: User, client: ClientDetails, now: datetime) -> None:
    """Record that somebody asked for the mail with which a password is reset."""
    _record(user, "request_password_reset", client, now, method="e-mail")


def record_token_use(*, token: ApiToken, client: ClientDetails, now: datetime) -> None:
    """Record the use of an API token from an address from which it was not used in the last 90 days."""
    seen, clock = (token.pk, client.network), time.monotonic()
    if _recent_token_uses.get(seen, 0.0) > clock:
        return
    with transaction.atomic():
        times = {"first_used_at": now, "last_used_at": now}
        row, new = TokenAddress.objects.get_or_create(token=token, address=client.network, defaults=times)
        if new:
            _record(
                token, "use_token_from_new_address", client, now, user=token.user, via="api", by_user=True
            )
        elif now - row.last_used_at > TOKEN_ADDRESS_UPDATE:
            TokenAddress.objects.filter(pk=row.pk).update(last_used_at=now)
    if len(_recent_token_uses) >= MAX_RECENT_TOKEN_USES:
        _recent_token_uses.clear()
    _recent_token_uses[seen] = clock + TOKEN_ADDRESS_UPDATE.total_seconds()


def _record(
    target: models.Model,
    verb: str,
    client: ClientDetails,
    now: datetime,
    *,
    user: User | None = None,
    via: str = "web",
    by_user: bool = False,
    **details: Any,
) -> None:
    """Write one event to the audit log and to the log of the process.

    ``by_user`` says that the person is known to have acted; otherwise it may have been a stranger.
    """
    person = user or (target if isinstance(target, User) else None)
    facts = {"address": client.address, "agent": client.agent, **details}
    event = audit.record(
        actor=person if by_user else None, via=via, now=now, verb=verb, target=target, after=facts
    )
    known = person.username if person else ""
    log.info(event.verb_text, user=known, target=event.target, **facts)
