"""Read and write the database rows of an agent's connection, through the scheduler and telemetry.

These functions run in threads. The caller passes the time as ``now``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.db import OperationalError

from agent.protocol import (
    Desired,
    Health,
    JoinAnswer,
    JoinRequest,
    LogChunk,
    Observed,
    Proof,
    RenewAnswer,
    RenewRequest,
    SampleBatch,
)
from scheduler.coordination import clock_check, clock_correction, edge_contacts
from scheduler.coordination.clock_check import ClockSample, ClockSource, ClockStepped
from scheduler.models import Host
from scheduler.sync import agent_api as scheduler_api
from scheduler.sync.agent_rejections import AgentRejected
from telemetry.ingest import agent_api as telemetry_api


@dataclass(frozen=True)
class AuthenticatedHost:
    id: int
    name: str


@dataclass(frozen=True)
class EdgeProcess:
    """This edge process. ``started_at`` is CLOCK_BOOTTIME in seconds."""

    id: str
    address: str
    started_at: float


@dataclass(frozen=True)
class RenewalSeconds:
    """The time from a contact in which leases may be renewed from memory, in seconds.

    ``maintenance_seconds`` is 0 if no maintenance of the database is announced.
    """

    seconds: float
    maintenance_seconds: float


class LogStoreError(Exception):
    """A log cannot be stored, because the disk for logs is full, broken or missing."""


def join(request: JoinRequest, now: dt.datetime) -> JoinAnswer:
    """Exchange a single-use join token for a credential. Raises AgentRejected."""
    return scheduler_api.join(request, now)


def authenticate(credential: str, now: dt.datetime) -> AuthenticatedHost:
    """Return the host of a credential. Raises AgentRejected if the credential is unknown or revoked."""
    host_id = scheduler_api.authenticate(credential, now)
    host = Host.objects.filter(pk=host_id).first() if host_id is not None else None
    if host is None:
        raise scheduler_api.removal_rejection(credential) or AgentRejected("credential_unknown")
    return AuthenticatedHost(host.pk, host.name)


def sync(
    host: AuthenticatedHost,
    credentials: Sequence[str],
    observed: Observed,
    read: ClockSource = clock_check.read_clocks,
) -> Desired:
    """Store an agent's report and return the desired state. Raises AgentRejected."""
    return _with_clock_check(lambda at: _sync(host, credentials, observed, at), read, check_first=False)


def _sync(
    host: AuthenticatedHost, credentials: Sequence[str], observed: Observed, at: ClockSample
) -> Desired:
    now = at.wall
    wanted = scheduler_api.sync_unchanged(host.id, credentials, observed, at)
    if wanted is None:
        clock_correction.correct_clock_step(at)
        _check_credential(host, credentials, now)
        wanted = scheduler_api.sync(host.id, observed, now, telemetry_api.gpu_fault_codes(observed.runs))
    if observed.strays is not None:
        telemetry_api.record_stray_processes(host.id, observed.strays, now)
    return _with_sample_watermark(host, wanted)


def desired_state(
    host: AuthenticatedHost, credentials: Sequence[str], read: ClockSource = clock_check.read_clocks
) -> Desired:
    """Return the desired state of a host. Raises AgentRejected if the host was revoked."""
    return _with_clock_check(lambda at: _desired_state(host, credentials, at.wall), read, check_first=True)


def _desired_state(host: AuthenticatedHost, credentials: Sequence[str], now: dt.datetime) -> Desired:
    _check_credential(host, credentials, now)
    return _with_sample_watermark(host, scheduler_api.desired(host.id, now))


def accept_proof(
    host: AuthenticatedHost, credentials: Sequence[str], proof: Proof, now: dt.datetime
) -> Desired:
    """Check the agent's signature of a challenge, and return the desired state with a new credential.

    Raises AgentRejected.
    """
    _check_credential(host, credentials, now)
    text, expires = scheduler_api.redeem_challenge(host.id, proof, now)
    wanted = _with_sample_watermark(host, scheduler_api.desired(host.id, now))
    return dataclasses.replace(wanted, credential=text, credential_expires_at=expires, challenge="")


def renew(credential: str, request: RenewRequest, now: dt.datetime) -> RenewAnswer:
    """Answer an agent whose credential has expired: first with a challenge, then with a new credential.

    The new credential is returned if the request contains the signed challenge. Raises AgentRejected.
    """
    return scheduler_api.renew(credential, request, now)


def _with_clock_check(
    act: Callable[[ClockSample], Desired], read: ClockSource, *, check_first: bool
) -> Desired:
    try:
        return clock_correction.with_steady_clock(act, read, check_first=check_first)
    except ClockStepped as error:
        raise AgentRejected("clock_stepped", {"problem": error}, retry=True) from None


def accept_samples(host: AuthenticatedHost, batch: SampleBatch, now: dt.datetime) -> None:
    """Queue samples, which another process stores.

    A later desired state acknowledges them by its ``committed_sequence``.
    """
    telemetry_api.enqueue_batch(host.id, batch, now)


def accept_health(host: AuthenticatedHost, event: Health, now: dt.datetime) -> None:
    """Store a hardware event."""
    telemetry_api.record_health_event(host.id, event, now)


def store_log(host: AuthenticatedHost, chunk: LogChunk) -> None:
    """Store a part of a run's log.

    Raises AgentRejected if the run is on another host. Raises LogStoreError if the disk fails.
    """
    try:
        scheduler_api.store_log(host.id, chunk)
    except OSError as error:
        raise LogStoreError(str(error)) from None


def record_contact(
    process: EdgeProcess,
    renewals: Mapping[tuple[int, str], float],
    asked_at: float,
    read: ClockSource = clock_check.read_clocks,
) -> RenewalSeconds:
    """Record a contact of this edge at ``asked_at``, and its renewals from memory until this time.

    All times are those of CLOCK_BOOTTIME. The result counts from ``asked_at``.
    """

    def act(at: ClockSample) -> RenewalSeconds:
        now = _wall_time(at, asked_at)
        limits = edge_contacts.record_contact(
            process=process.id,
            address=process.address,
            started_at=_wall_time(at, process.started_at),
            renewals=_memory_renewals(at, renewals),
            now=now,
        )
        until = limits.maintenance_until
        return RenewalSeconds(
            (limits.renews_until - now).total_seconds(),
            (until - now).total_seconds() if until is not None else 0.0,
        )

    try:
        return clock_correction.with_steady_clock(act, read)
    except ClockStepped as error:
        raise OperationalError(str(error)) from None


def record_end(process: EdgeProcess, renewals: Mapping[tuple[int, str], float]) -> None:
    """Record that this edge ends and renews no more leases."""
    edge_contacts.record_end(process.id, _memory_renewals(clock_check.read_clocks(), renewals))


def _memory_renewals(
    at: ClockSample, renewals: Mapping[tuple[int, str], float]
) -> list[edge_contacts.MemoryRenewal]:
    return [
        edge_contacts.MemoryRenewal(host, instance, _wall_time(at, renewed_at))
        for (host, instance), renewed_at in renewals.items()
    ]


def _wall_time(at: ClockSample, boottime: float) -> dt.datetime:
    return at.wall - dt.timedelta(seconds=at.uptime - boottime)


def record_rejected_agent(host: AuthenticatedHost, reason: str, now: dt.datetime) -> None:
    """Record that a second agent of this host was rejected. The host's page shows the record."""
    scheduler_api.record_rejected(host.id, reason, now, code="agent_second")


def record_unreadable_agent(host: AuthenticatedHost, reason: str, now: dt.datetime) -> None:
    """Record that the agent was rejected because its frames cannot be decoded.

    The host's page shows the record.
    """
    scheduler_api.record_rejected(host.id, reason, now)


def has_joined_agent(host_id: int) -> bool:
    """Return True if an agent has joined as this host and its credential was not revoked since."""
    return Host.objects.filter(pk=host_id).exclude(credential_hash="").exists()


def _check_credential(host: AuthenticatedHost, credentials: Sequence[str], now: dt.datetime) -> None:
    """Raise AgentRejected if none of the connection's credentials is valid for the host.

    The oldest credential is checked first, because a successful check of a newer one makes the older ones
    invalid. The agent may still use an older one.
    """
    for credential in credentials:
        if scheduler_api.authenticate(credential, now) == host.id:
            return
    raise scheduler_api.removal_rejection(credentials[0]) or AgentRejected("credential_expired")


def _with_sample_watermark(host: AuthenticatedHost, wanted: Desired) -> Desired:
    """Add the sequence number of the last stored samples to the desired state.

    Only telemetry knows this number; the scheduler does not.
    """
    return dataclasses.replace(wanted, committed_sequence=telemetry_api.committed_sequence(host.id))
