"""Authenticate hosts: first with a join token, then with a credential that is renewed regularly.

An agent joins with a token and registers the public key of a key pair that it created on the host. It gets a
new credential only for a challenge that is signed with the private key. So a copied credential is valid for
at most a day. The database stores only hashes of tokens and credentials.

A renewed credential is derived from the hash of the current credential and the site's secret. So two renewals
give the same credential, and a lost response does no harm. A renewed credential takes effect when the agent
first uses it. A database that was restored from a backup accepts credentials that were issued after the
backup.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.conf import settings
from django.db import transaction

from scheduler.coordination import locks
from scheduler.core.rejection import OperationRejected
from scheduler.models import Command, Host, JoinToken
from scheduler.services.hosts import record_host_change
from scheduler.state import nudge
from scheduler.state.states import LeaseState, change_state

JOIN_TOKEN_TTL = timedelta(minutes=15)
CREDENTIAL_TTL = timedelta(hours=24)
CREDENTIAL_RENEW_AFTER = CREDENTIAL_TTL * 2 / 3
CREDENTIAL_RENEWABLE_FOR = timedelta(days=30)  # after the expiry, so that a host that was off can reconnect
# After a backup was restored, a credential may be this many renewals ahead of the credential in the backup.
# This number of renewals takes about 40 days.
MAX_CREDENTIAL_CHAIN = 64
CHALLENGE_STEP_SECONDS = 300
CREDENTIAL_PREFIX = "gpa"
CHALLENGE_PREFIX = "gpc"
JOIN_TOKEN_PREFIX = "gpj_"  # without a prefix, a token could start with "-" and look like an option


@dataclass(frozen=True, slots=True)
class HostCredential:
    text: str
    expires_at: datetime


@transaction.atomic
def issue_join_token(host: Host, *, now: datetime) -> str:
    """Issue a token with which an agent joins as this host.

    The token is valid once, within 15 minutes. Earlier unused tokens of the host expire.
    """
    JoinToken.objects.filter(host=host, used_at__isnull=True, expires_at__gt=now).update(expires_at=now)
    text = f"{JOIN_TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
    JoinToken.objects.create(
        host=host, token_hash=_hash(text), created_at=now, expires_at=now + JOIN_TOKEN_TTL
    )
    return text


@transaction.atomic
def redeem_join_token(
    *,
    token: str,
    host_name: str,
    instance: str,
    boot_id: str,
    now: datetime,
    public_key: str = "",
    signature: str = "",
) -> tuple[Host, HostCredential]:
    """Make the agent ``instance`` the agent of the token's host. Earlier agents are rejected from now on.

    If the response was lost, the agent may repeat the request. Until the agent has used its credential, the
    token stays valid for the same instance and key. A repeated request gives a new credential, and the
    credential of the lost response becomes invalid.

    Raises OperationRejected with one of the codes ``host_is_removed``, ``join_token_unknown``,
    ``join_token_spent``, ``join_token_expired``, ``join_token_of_another_host`` and ``join_key_not_proven``.
    The last code means that the token was not signed with the private key of ``public_key``.
    """
    row = JoinToken.objects.filter(token_hash=_hash(token)).first()
    if row is None:
        raise OperationRejected("join_token_unknown")
    host = locks.hosts([row.host_id])[row.host_id]
    row.refresh_from_db()  # another transaction may have revoked the token before the host was locked
    if host.removed_at is not None:
        raise OperationRejected("host_is_removed", (("host", host.name),))
    if host.name != host_name:
        raise OperationRejected("join_token_of_another_host", (("host", host_name),))
    if row.expires_at <= now:
        raise OperationRejected("join_token_expired", (("expired_at", row.expires_at.isoformat()),))
    if public_key and not _is_signed(public_key, signature, f"gpupool join {host_name} {token}"):
        raise OperationRejected("join_key_not_proven")
    is_first = bool(JoinToken.objects.filter(pk=row.pk, used_at__isnull=True).update(used_at=now))
    if not is_first and not _join_answer_was_lost(host, instance, public_key):
        raise OperationRejected("join_token_spent")
    if instance != host.agent_instance:  # the new agent must not start runs of the earlier agent
        starts = Command.objects.filter(host=host, verb=Command.Verb.START, done_at__isnull=True)
        starts.update(done_at=now)
    credential = HostCredential(_credential_text(host.pk, secrets.token_urlsafe(32)), now + CREDENTIAL_TTL)
    host.agent_instance, host.boot_id, host.refused_agent = instance, boot_id, None
    host.credential_hash, host.credential_expires_at = _hash(credential.text), credential.expires_at
    host.public_key, host.agent_start = public_key, ""
    host.agent_before_heard_at = host.last_sync_at
    host.save(
        update_fields=[
            "agent_before_heard_at",
            "agent_instance",
            "boot_id",
            "refused_agent",
            "credential_hash",
            "credential_expires_at",
            "public_key",
            "agent_start",
        ]
    )
    nudge.pages(nudge.HOSTS)
    return host, credential


def _join_answer_was_lost(host: Host, instance: str, public_key: str) -> bool:
    """Return True if the agent with this instance and key has joined as the host but has not reported yet.

    The agent has proven that it has the private key of ``public_key``.
    """
    joined = bool(public_key) and (host.agent_instance, host.public_key) == (instance, public_key)
    return joined and host.last_sync_at == host.agent_before_heard_at


def verify_credential(text: str, *, now: datetime) -> int | None:
    """Return the id of the host to which this credential belongs, or None if the credential is not valid.

    A credential that is derived from the host's stored credential is also valid. It replaces the stored
    credential.
    """
    host = Host.objects.filter(pk=_host_id(text)).only("credential_hash", "credential_expires_at").first()
    if (
        host is None
        or not host.credential_hash
        or host.credential_expires_at is None
        or host.credential_expires_at <= now
    ):
        return None
    if hmac.compare_digest(_hash(text), host.credential_hash):
        return int(host.pk)
    if _is_in_chain(text, host):
        same = Host.objects.filter(pk=host.pk, credential_hash=host.credential_hash)
        same.update(credential_hash=_hash(text), credential_expires_at=now + CREDENTIAL_TTL)
        return int(host.pk)
    return None


def is_of_removed_host(text: str) -> bool:
    """Return True if this credential contains the id of a removed host.

    The secret in the credential cannot be checked any more.
    """
    return Host.with_removed.filter(pk=_host_id(text), removed_at__isnull=False).exists()


def _is_in_chain(text: str, host: Host) -> bool:
    """Return True if ``text`` is derived from the host's stored credential, by one or several renewals.

    Each credential is derived from the previous credential and the site's secret, so nobody else can compute
    a credential. More than one renewal is possible if the database was restored from a backup.
    """
    last = host.credential_hash
    for _ in range(MAX_CREDENTIAL_CHAIN):
        following = _credential_text_after(host.pk, last)
        if hmac.compare_digest(text.encode(), following.encode()):
            return True
        last = _hash(following)
    return False


def renewed_credential(host: Host, *, now: datetime) -> HostCredential | None:
    """Return the next credential of a host that registered no key.

    Return None if the host has a key or the renewal is not due. A renewal is due after two thirds of the
    credential's lifetime. Repeated calls return the same text.
    """
    if host.public_key or not _renewal_is_due(host, now):
        return None
    return HostCredential(_next_credential_text(host), now + CREDENTIAL_TTL)


def due_challenge(host: Host, *, now: datetime) -> str:
    """Return the challenge with which a host that has a key renews its credential.

    Return an empty string if the host has no key or the renewal is not due. A renewal is due after two thirds
    of the credential's lifetime.
    """
    return _challenge(host, now) if host.public_key and _renewal_is_due(host, now) else ""


def redeem_challenge(host: Host, *, challenge: str, signature: str, now: datetime) -> HostCredential:
    """Return the next credential for a signed challenge. It takes effect when the agent first uses it.

    Raises OperationRejected ``challenge_unknown`` if the challenge has expired or was made for another host
    or credential. Raises ``challenge_not_signed`` if the host's key did not sign it.
    """
    expires = challenge.split(".")[2] if challenge.count(".") == 3 else ""
    is_time = expires.isascii() and expires.isdigit() and len(expires) < 16
    known = bool(host.credential_hash) and is_time and int(expires) > now.timestamp()
    if not known or not hmac.compare_digest(challenge.encode(), _challenge_text(host, int(expires)).encode()):
        raise OperationRejected("challenge_unknown")
    if not host.public_key or not _is_signed(host.public_key, signature, f"gpupool renew {challenge}"):
        raise OperationRejected("challenge_not_signed")
    return HostCredential(_next_credential_text(host), now + CREDENTIAL_TTL)


def challenge_for_expired(text: str, *, now: datetime) -> str:
    """Return the challenge with which a host renews its expired credential ``text``.

    ``text`` must be the host's last credential, which has expired. If the last credential was never used,
    ``text`` may also be the previous credential, even before the last credential expires. Return an empty
    string for any other credential, and if the last credential expired longer than CREDENTIAL_RENEWABLE_FOR
    ago.

    A valid credential is renewed only over the host's open connection (``due_challenge``). Otherwise a copy
    of the host's state folder could replace the host.
    """
    host = _host_of_expired(text, now)
    return _challenge(host, now) if host is not None else ""


@transaction.atomic
def renew_expired_credential(text: str, *, challenge: str, signature: str, now: datetime) -> HostCredential:
    """Return a credential that replaces the expired credential ``text``, for a signed challenge.

    The new credential is valid at once. Repeated calls return the same credential until the host has used it.
    Raises OperationRejected with the same codes as ``redeem_challenge``.
    """
    host = _host_of_expired(text, now)
    if host is None:
        raise OperationRejected("challenge_unknown")
    redeem_challenge(host, challenge=challenge, signature=signature, now=now)
    renewed = HostCredential(_credential_text_after(host.pk, _hash(text)), now + CREDENTIAL_TTL)
    same = Host.objects.filter(pk=host.pk, credential_hash=host.credential_hash)
    if not same.update(credential_hash=_hash(renewed.text), credential_expires_at=renewed.expires_at):
        raise OperationRejected("challenge_unknown")
    return renewed


def _host_of_expired(text: str, now: datetime) -> Host | None:
    host = Host.objects.filter(pk=_host_id(text)).exclude(credential_hash="").exclude(public_key="").first()
    if host is None or host.credential_expires_at is None:
        return None
    ends = host.credential_expires_at
    if hmac.compare_digest(_hash(text), host.credential_hash):
        return host if ends <= now < ends + CREDENTIAL_RENEWABLE_FOR else None
    is_next = hmac.compare_digest(_hash(_credential_text_after(host.pk, _hash(text))), host.credential_hash)
    unused = host.last_sync_at is None or host.last_sync_at < ends - CREDENTIAL_TTL
    # If the response to a renewal was lost, the host still has the previous credential. The previous
    # credential is accepted while nobody has used the new credential.
    return host if is_next and unused and now < ends + CREDENTIAL_RENEWABLE_FOR else None


def _renewal_is_due(host: Host, now: datetime) -> bool:
    expires = host.credential_expires_at
    return (
        bool(host.credential_hash)
        and expires is not None
        and now >= expires - CREDENTIAL_TTL + CREDENTIAL_RENEW_AFTER
    )


def _challenge(host: Host, now: datetime) -> str:
    """Return the host's current challenge.

    The challenge stays the same for up to CHALLENGE_STEP_SECONDS, so a repeated request can use the same
    signature.
    """
    return _challenge_text(
        host, (int(now.timestamp()) // CHALLENGE_STEP_SECONDS + 2) * CHALLENGE_STEP_SECONDS
    )


def _challenge_text(host: Host, expires: int) -> str:
    message = f"challenge to host {host.pk} until {expires} after {host.credential_hash}".encode()
    mac = hmac.new(settings.SECRET_KEY.encode(), message, hashlib.sha256).digest()
    return f"{CHALLENGE_PREFIX}.{host.pk}.{expires}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def _is_signed(public_key: str, signature: str, text: str) -> bool:
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        key.verify(base64.b64decode(signature, validate=True), text.encode())
    except (ValueError, binascii.Error, InvalidSignature):
        return False
    return True


@transaction.atomic
def revoke_credential(host: Host, *, now: datetime) -> bool:
    """Revoke the host's credential. Its agent is disconnected at once and may join again with a new token.

    No new work is placed on the host, because it would be lost when the lease ends. Return False if the host
    had no credential.
    """
    fresh = locks.hosts([host.pk])[host.pk]
    JoinToken.objects.filter(host=host, used_at__isnull=True, expires_at__gt=now).update(expires_at=now)
    revoked = (
        Host.objects.filter(pk=host.pk)
        .exclude(credential_hash="")
        .update(credential_hash="", credential_expires_at=None, public_key="")
    )
    host.credential_hash, host.credential_expires_at, host.public_key = "", None, ""
    if revoked and change_state(fresh, "lease_state", old=LeaseState.ALIVE, new=LeaseState.SUSPECT):
        host.lease_state = LeaseState.SUSPECT
        record_host_change(fresh, "its agent's credential was revoked", now)
        nudge.engine()
    nudge.hosts([host.pk])
    nudge.pages(nudge.HOSTS)
    return bool(revoked)


@transaction.atomic
def record_rejected_agent(
    host_id: int, *, reason: str, code: str = "", instance: str = "", boot_id: str = "", now: datetime
) -> None:
    """Record an agent that claimed to be this host and was rejected. The host's page shows the last one.

    Unknown values stay empty. ``code`` is ``agent_copy`` or ``agent_second`` if an operator has to choose
    between two agents. Otherwise it is empty.
    """
    Host.objects.filter(pk=host_id).update(
        refused_agent={
            "instance": instance[:64],
            "boot_id": boot_id[:64],
            "reason": reason,
            "code": code,
            "at": now.isoformat(),
        }
    )
    nudge.pages(nudge.HOSTS)


def _next_credential_text(host: Host) -> str:
    return _credential_text_after(host.pk, host.credential_hash)


def _credential_text_after(host_id: int, credential_hash: str) -> str:
    message = f"next credential of host {host_id} after {credential_hash}".encode()
    mac = hmac.new(settings.SECRET_KEY.encode(), message, hashlib.sha256).digest()
    return _credential_text(host_id, base64.urlsafe_b64encode(mac).decode().rstrip("="))


def _credential_text(host_id: int, secret: str) -> str:
    return f"{CREDENTIAL_PREFIX}.{host_id}.{secret}"


def _host_id(text: str) -> int:
    parts = text.split(".")
    known = (
        len(parts) == 3
        and parts[0] == CREDENTIAL_PREFIX
        and parts[1].isascii()
        and parts[1].isdigit()
        and len(parts[1]) < 19
    )
    return int(parts[1]) if known else 0


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
