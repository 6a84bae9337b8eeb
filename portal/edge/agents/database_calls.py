"""What an agent's connection reads and writes in the rows: the edge's only way to scheduler and telemetry for agents.
Plain functions, run in threads; ``now`` comes from the caller."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
from scheduler.coordination import clock_check, clock_correction
from scheduler.coordination.clock_check import ClockSample, ClockSource, ClockStepped
from scheduler.models import Host
from scheduler.sync import agent_api as scheduler_api
from telemetry.ingest import agent_api as telemetry_api


@dataclass(frozen=True)
class AuthenticatedHost:
    id: int
    name: str


class AgentConnectionRefused(Exception):
    """This agent is not served: wrong or revoked credential, unknown version, a clone. ``retry``: it may try again."""

    def __init__(self, reason: str, *, retry: bool = False) -> None:
        super().__init__(reason)
        self.retry = retry


class LogStoreError(Exception):
    """The disk for logs takes nothing: full, broken or not there."""


def join(request: JoinRequest, now: dt.datetime) -> JoinAnswer:
    """Spend a join token. Raises AgentConnectionRefused."""
    with _rejections():
        return scheduler_api.join(request, now)


def authenticate(credential: str, now: dt.datetime) -> AuthenticatedHost:
    """The host whose credential this is. Raises AgentConnectionRefused when it is none, or no longer."""
    host_id = scheduler_api.authenticate(credential, now)
    host = Host.objects.filter(pk=host_id).first() if host_id is not None else None
    if host is None:
        raise AgentConnectionRefused(
            "this credential is unknown, expired or revoked; join again with a new token"
        )
    return AuthenticatedHost(host.pk, host.name)


def sync(
    host: AuthenticatedHost,
    credentials: Sequence[str],
    observed: Observed,
    read: ClockSource = clock_check.read_clocks,
) -> Desired:
    """Take in what an agent sees; answer what should be. Raises AgentConnectionRefused."""
    return _with_clock_check(lambda at: _sync(host, credentials, observed, at), read, looks=False)


def _sync(
    host: AuthenticatedHost, credentials: Sequence[str], observed: Observed, at: ClockSample
) -> Desired:
    now = at.wall
    wanted = scheduler_api.sync_unchanged(host.id, credentials, observed, at)
    if wanted is None:
        clock_correction.correct_clock_step(at)
        _check_credential(host, credentials, now)
        with _rejections():
            wanted = scheduler_api.sync(host.id, observed, now, telemetry_api.gpu_fault_codes(observed.runs))
    if observed.strays is not None:
        telemetry_api.record_stray_processes(host.id, observed.strays, now)
    return _with_sample_watermark(host, wanted)


def desired_state(
    host: AuthenticatedHost, credentials: Sequence[str], read: ClockSource = clock_check.read_clocks
) -> Desired:
    """What should be on a host now. Raises AgentConnectionRefused: a revoked host hears it at the next nudge."""
    return _with_clock_check(lambda at: _desired_state(host, credentials, at.wall), read, looks=True)


def _desired_state(host: AuthenticatedHost, credentials: Sequence[str], now: dt.datetime) -> Desired:
    _check_credential(host, credentials, now)
    with _rejections():
        return _with_sample_watermark(host, scheduler_api.desired(host.id, now))


def accept_proof(
    host: AuthenticatedHost, credentials: Sequence[str], proof: Proof, now: dt.datetime
) -> Desired:
    """What should be, with the credential that a signed challenge brings. Raises AgentConnectionRefused."""
    _check_credential(host, credentials, now)
    with _rejections():
        text, expires = scheduler_api.redeem_challenge(host.id, proof, now)
        wanted = _with_sample_watermark(host, scheduler_api.desired(host.id, now))
        return dataclasses.replace(wanted, credential=text, credential_expires_at=expires, challenge="")


def renew(credential: str, request: RenewRequest, now: dt.datetime) -> RenewAnswer:
    """A challenge, or a new credential for its signature. Raises AgentConnectionRefused."""
    with _rejections():
        return scheduler_api.renew(credential, request, now)


def _with_clock_check(act: Callable[[ClockSample], Desired], read: ClockSource, *, looks: bool) -> Desired:
    try:
        return clock_correction.with_steady_clock(act, read, looks=looks)
    except ClockStepped as error:
        raise AgentConnectionRefused(str(error), retry=True) from None


def accept_samples(host: AuthenticatedHost, batch: SampleBatch, now: dt.datetime) -> None:
    """Pass samples on. They are acknowledged later, by ``committed_sequence``."""
    telemetry_api.enqueue_batch(host.id, batch, now)


def accept_health(host: AuthenticatedHost, event: Health, now: dt.datetime) -> None:
    """Keep a hardware event."""
    telemetry_api.record_health_event(host.id, event, now)


def store_log(host: AuthenticatedHost, chunk: LogChunk) -> None:
    """Keep a piece of a run's log. Raises AgentConnectionRefused for a run of another host, and LogNotKept."""
    try:
        with _rejections():
            scheduler_api.store_log(host.id, chunk)
    except OSError as error:
        raise LogStoreError(str(error)) from None


def record_rejected_agent(host: AuthenticatedHost, reason: str, now: dt.datetime) -> None:
    """Keep, for the host's page, that another agent of this host was turned away."""
    scheduler_api.record_rejected(host.id, reason, now, code="agent_second")


def record_unreadable_agent(host: AuthenticatedHost, reason: str, now: dt.datetime) -> None:
    """Keep, for the host's page, that its agent was turned away because nothing that it says can be read."""
    scheduler_api.record_rejected(host.id, reason, now)


def has_joined_agent(host_id: int) -> bool:
    """Whether an agent has joined as this host and was not revoked since."""
    return Host.objects.filter(pk=host_id).exclude(credential_hash="").exists()


def _check_credential(host: AuthenticatedHost, credentials: Sequence[str], now: dt.datetime) -> None:
    """The connection's credential is still good, or else one that was sent down it since. In this order: the newer one counts
    from its first use, and the agent may not have got it."""
    for credential in credentials:
        if scheduler_api.authenticate(credential, now) == host.id:
            return
    raise AgentConnectionRefused(
        "this host's credential has expired or was revoked; join again with a new token"
    )


@contextlib.contextmanager
def _rejections() -> Iterator[None]:
    try:
        yield
    except scheduler_api.AgentRejected as refused:
        raise AgentConnectionRefused(str(refused), retry=refused.retry) from None


def _with_sample_watermark(host: AuthenticatedHost, wanted: Desired) -> Desired:
    """With what telemetry says about its samples: the scheduler does not know of telemetry."""
    return dataclasses.replace(wanted, committed_sequence=telemetry_api.committed_sequence(host.id))
