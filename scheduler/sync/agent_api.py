"""Provide the functions that the edge and the web process call for agents.

The edge is the process that holds the agents' connections. The functions block, so their callers run them in
threads. Only the credential identifies the host, never the content of a message. ``AgentRejected`` is sent to
the agent as a Refused frame. Samples and health events go to ``telemetry.ingest.agent_api``, which also
supplies ``Desired.committed_sequence``.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from datetime import datetime

from agent.protocol import (
    VERSION,
    Desired,
    JoinAnswer,
    JoinRequest,
    LogChunk,
    Observed,
    Proof,
    RenewAnswer,
    RenewRequest,
)
from scheduler import services
from scheduler.coordination.clock_check import ClockSample
from scheduler.models import Host, Run
from scheduler.runs import logs
from scheduler.runs.workspace_secret import workspace_secret
from scheduler.sync import desired_state, heartbeat, observed_state
from scheduler.sync.agent_rejections import AgentRejected

__all__ = [
    "authenticate",
    "desired",
    "join",
    "redeem_challenge",
    "record_rejected",
    "removal_rejection",
    "renew",
    "store_log",
    "sync",
    "sync_unchanged",
    "workspace_secret",
]


def join(request: JoinRequest, now: datetime) -> JoinAnswer:
    """Redeem a join token and return the host's first credential. Raises AgentRejected with the problem."""
    if request.version != VERSION:
        raise AgentRejected("version_unsupported", {"version": request.version, "allowed": VERSION})
    if not request.instance or len(request.instance) > 64 or len(request.boot_id) > 64:
        raise AgentRejected("join_identity_invalid")
    if len(request.public_key) > 60 or len(request.signature) > 120:
        raise AgentRejected("join_key_invalid")
    try:
        host, credential = services.redeem_join_token(
            token=request.token,
            host_name=request.host,
            instance=request.instance,
            boot_id=request.boot_id,
            now=now,
            public_key=request.public_key,
            signature=request.signature,
        )
    except services.OperationRejected as refused:
        raise AgentRejected(refused.code) from None
    return JoinAnswer(
        credential=credential.text, credential_expires_at=credential.expires_at.timestamp(), host=host.name
    )


def redeem_challenge(host_id: int, proof: Proof, now: datetime) -> tuple[str, float]:
    """Return the next credential and its expiry (seconds since the epoch), for a signed challenge.

    The credential takes effect at its first use. Raises AgentRejected if the challenge or the signature is
    not valid.
    """
    try:
        renewed = services.redeem_challenge(
            _host(host_id), challenge=proof.challenge, signature=proof.signature, now=now
        )
    except services.OperationRejected as refused:
        raise AgentRejected(refused.code, retry=True) from None
    return renewed.text, renewed.expires_at.timestamp()


def renew(credential: str, request: RenewRequest, now: datetime) -> RenewAnswer:
    """Renew an expired credential in two steps.

    A request without a challenge returns a challenge. A request with the signed challenge returns a new
    credential. Raises AgentRejected if the credential, the challenge or the signature is not valid.
    """
    if request.version != VERSION:
        raise AgentRejected("version_unsupported", {"version": request.version, "allowed": VERSION})
    try:
        if not request.challenge:
            challenge = services.challenge_for_expired(credential, now=now)
            if not challenge:
                raise services.OperationRejected("challenge_unknown")
            return RenewAnswer(challenge=challenge)
        renewed = services.renew_expired_credential(
            credential, challenge=request.challenge, signature=request.signature, now=now
        )
    except services.OperationRejected as refused:
        raise AgentRejected(refused.code) from None
    return RenewAnswer(credential=renewed.text, credential_expires_at=renewed.expires_at.timestamp())


def authenticate(credential: str, now: datetime) -> int | None:
    """Return the id of the credential's host, or None if the credential is unknown, expired or revoked."""
    return services.verify_credential(credential, now=now)


def removal_rejection(credential: str) -> AgentRejected | None:
    """Return the rejection if the credential belongs to a removed host, otherwise None."""
    return AgentRejected("host_is_removed") if services.is_of_removed_host(credential) else None


def sync_unchanged(
    host_id: int, credentials: Sequence[str], observed: Observed, sample: ClockSample
) -> Desired | None:
    """Handle a report without changes, and return the desired state.

    One statement writes the report and checks the credential and the clock. Return None and write nothing if
    anything may have changed. The caller must then call ``correct_clock_step``, ``authenticate`` and
    ``sync``.
    """
    return heartbeat.sync_if_unchanged(host_id, credentials, observed, sample)


def sync(host_id: int, observed: Observed, now: datetime, gpu_faults: Collection[str] = ()) -> Desired:
    """Store a report and return the desired state.

    ``gpu_faults`` has the same meaning as in ``observed_state.observe``. Raises AgentRejected if the agent or
    the report is not accepted.
    """
    host = _host(host_id)
    observed_state.observe(host, observed, now, gpu_faults)
    host.refresh_from_db()
    return desired_state.desired(host, now)


def desired(host_id: int, now: datetime) -> Desired:
    """Return the desired state without storing a report. The edge sends it after a change on the server.

    Raises AgentRejected if the credential was revoked.
    """
    return desired_state.desired(_host(host_id), now)


def record_rejected(host_id: int, reason: str, now: datetime, code: str = "") -> None:
    """Record that an agent with the host's credential was rejected before its first report.

    The host's page shows the rejection. ``code`` is ``agent_second`` if another agent is connected.
    """
    services.record_rejected_agent(host_id, reason=reason, code=code, now=now)


def store_log(host_id: int, chunk: LogChunk) -> int:
    """Write a chunk of a run's log, and return the log's length in bytes.

    A chunk that is sent twice changes nothing. Raises AgentRejected for a run of another host.
    """
    try:
        public_id = uuid.UUID(chunk.run)
    except ValueError:
        raise AgentRejected("run_of_another_host", {"run": repr(chunk.run[:60])}) from None
    if not Run.objects.filter(public_id=public_id, host_id=host_id).exists():
        raise AgentRejected("run_of_another_host", {"run": public_id})
    return logs.append_log(public_id, chunk.offset, chunk.text)


def _host(host_id: int) -> Host:
    host = Host.objects.filter(pk=host_id).first()
    if host is None:
        raise AgentRejected("host_unknown")
    return host
