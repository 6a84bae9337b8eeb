"""Authenticate hosts: first by a join token, then by a credential that is renewed.

With the token the agent registers the public key of a key pair made on the host. A new credential is given
only for a challenge signed with the private key; a copied credential is valid for at most a day. Only
hashes are stored. A renewed credential is derived from the hash of the current credential and the site's
secret. So renewing twice gives the same text, and a lost response does no harm. A renewed credential takes
effect when the agent first uses it. A database restored from a backup accepts credentials that were issued
after the backup.
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
CREDENTIAL_RENEWABLE_FOR = timedelta(days=30)  # after its expiry, so that a host that was off can rejoin
MAX_CREDENTIAL_CHAIN = 64  # renewals since the restored backup: about 40 days
CHALLENGE_STEP_SECONDS = 300
CREDENTIAL_PREFIX = "gpa"
CHALLENGE_PREFIX = "gpc"
JOIN_TOKEN_PREFIX = "gpj_"  # so that no token starts with "-", which a command line reads as an option


@dataclass(frozen=True, slots=True)
class HostCredential:
    text: str
    expires_at: datetime


@transaction.atomic
def issue_join_token(host: Host, *, now: datetime) -> str:
    """Issue a token with which one agent joins as this host, once, within 15 minutes. Earlier unused tokens
    expire.
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
    """Make ``instance`` the host's agent; an earlier agent is rejected from now on.

    If the response was lost, the agent may repeat the request: a spent token stays valid for the instance
    and the key that it registered, until the agent has used its credential. The credential of the lost
    response becomes invalid.

    Raises OperationRejected ``host_is_removed``, ``join_token_unknown``, ``join_token_spent``,
    ``join_token_expired``, ``join_token_of_another_host``, or ``join_key_not_proven`` if the token was not
    signed with the private key of ``public_key``.
    """
    row = JoinToken.objects.filter(token_hash=_hash(token)).first()
    if row is None:
        raise OperationRejected("join_token_unknown")
    host = locks.hosts([row.host_id])[row.host_id]
    row.refresh_from_db()  # under the lock: the token may have been revoked, or the host removed
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
    if instance != host.agent_instance:  # the new agent must not start the earlier agent's runs
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
    """Return True if this agent, proven by its key, joined as the host and has not reported since."""
    joined = bool(public_key) and (host.agent_instance, host.public_key) == (instance, public_key)
    return joined and host.last_sync_at == host.agent_before_heard_at


def verify_credential(text: str, *, now: datetime) -> int | None:
    """Return the id of the host to which this credential belongs; None if no valid credential matches.

    A credential that is derived from the host's current credential is accepted too, and replaces it.
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
    """Return True if this credential has the id of a removed host. Its secret can't be checked any more."""
    return Host.with_removed.filter(pk=_host_id(text), removed_at__isnull=False).exists()


def _is_in_chain(text: str, host: Host) -> bool:
    """Return True if this is the host's next credential or a later credential.

    Each credential is derived from the previous credential and the site's secret, so nobody else can compute
    a credential. Later credentials than the next were issued after the backup from which this database was
    restored.
    """
    last = host.credential_hash
    for _ in range(MAX_CREDENTIAL_CHAIN):
        following = _credential_text_after(host.pk, last)
        if hmac.compare_digest(text.encode(), following.encode()):
            return True
        last = _hash(following)
    return False


def renewed_credential(host: Host, *, now: datetime) -> HostCredential | None:
    """Return the next credential of a host without a key, or None if the renewal is not due.

    A renewal is due after two thirds of the credential's lifetime. Repeated calls return the same text.
    """
    if host.public_key or not _renewal_is_due(host, now):
        return None
    return HostCredential(_next_credential_text(host), now + CREDENTIAL_TTL)


def due_challenge(host: Host, *, now: datetime) -> str:
    """Return the challenge for a host with a key, or an empty string if the renewal is not due.

    A renewal is due after two thirds of the credential's lifetime.
    """
    return _challenge(host, now) if host.public_key and _renewal_is_due(host, now) else ""


def redeem_challenge(host: Host, *, challenge: str, signature: str, now: datetime) -> HostCredential:
    """Return the next credential for a signed challenge; it takes effect when the agent first uses it.

    Raises OperationRejected ``challenge_unknown`` (for another host or credential, or too old) or
    ``challenge_not_signed``.
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
    """Return the challenge for the holder of the host's last credential after it has expired, else an empty
    string.

    The previous credential is accepted too, until the last credential is used. While the credential is valid,
    only the host's open connection gets a challenge, so that a copy of its state folder cannot replace the
    host.
    """
    host = _host_of_expired(text, now)
    return _challenge(host, now) if host is not None else ""


@transaction.atomic
def renew_expired_credential(text: str, *, challenge: str, signature: str, now: datetime) -> HostCredential:
    """Return a credential that replaces ``text``, for a signed challenge. It is valid at once.

    Repeated calls return the same credential until the host has used it. Raises OperationRejected as
    ``redeem_challenge`` does.
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
    # The credential was renewed and the response was lost: nobody has used the new credential yet.
    return host if is_next and unused and now < ends + CREDENTIAL_RENEWABLE_FOR else None


def _renewal_is_due(host: Host, now: datetime) -> bool:
    expires = host.credential_expires_at
    return (
        bool(host.credential_hash)
        and expires is not None
        and now >= expires - CREDENTIAL_TTL + CREDENTIAL_RENEW_AFTER
    )


def _challenge(host: Host, now: datetime) -> str:
    """Return a challenge. It is the same for some minutes, so a repeated request needs no new signature."""
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
    """Revoke the host's credential: its agent is disconnected at once and may join again with a new token.

    Nothing new is placed on the host, since new work would be lost when the lease ends. Returns False if the
    host had no credential.
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
    """Record the last agent that was rejected as this host, and why, for the host's page.

    Unknown values stay empty. ``code``: ``agent_copy`` or ``agent_second`` if an operator has to choose
    between two agents.
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
