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
from scheduler import agent_api as scheduler_api
from scheduler import moment, wall_clock
from scheduler.models import Host
from scheduler.moment import ClockWasSet, Moment, Read
from telemetry import agent_api as telemetry_api


@dataclass(frozen=True)
class KnownHost:
    id: int
    name: str


class Unwelcome(Exception):
    """This agent is not served: wrong or revoked credential, unknown version, a clone. ``retry``: it may try again."""

    def __init__(self, reason: str, *, retry: bool = False) -> None:
        super().__init__(reason)
        self.retry = retry


class LogNotKept(Exception):
    """The disk for logs takes nothing: full, broken or not there."""


def join(request: JoinRequest, now: dt.datetime) -> JoinAnswer:
    """Spend a join token. Raises Unwelcome."""
    with _refusals():
        return scheduler_api.join(request, now)


def authenticate(credential: str, now: dt.datetime) -> KnownHost:
    """The host whose credential this is. Raises Unwelcome when it is none, or no longer."""
    host_id = scheduler_api.authenticate(credential, now)
    host = Host.objects.filter(pk=host_id).first() if host_id is not None else None
    if host is None:
        raise Unwelcome("this credential is unknown, expired or revoked; join again with a new token")
    return KnownHost(host.pk, host.name)


def sync(host: KnownHost, credentials: Sequence[str], observed: Observed, read: Read = moment.read) -> Desired:
    """Take in what an agent sees; answer what should be. Raises Unwelcome."""
    return _steadily(lambda at: _sync(host, credentials, observed, at), read, looks=False)


def _sync(host: KnownHost, credentials: Sequence[str], observed: Observed, at: Moment) -> Desired:
    now = at.wall
    wanted = scheduler_api.sync_unchanged(host.id, credentials, observed, at)
    if wanted is None:
        wall_clock.look(at)
        _check(host, credentials, now)
        with _refusals():
            wanted = scheduler_api.sync(host.id, observed, now, telemetry_api.gpu_faults(observed.runs))
    if observed.strays is not None:
        telemetry_api.accept_strays(host.id, observed.strays, now)
    return _whole(host, wanted)


def desired(host: KnownHost, credentials: Sequence[str], read: Read = moment.read) -> Desired:
    """What should be on a host now. Raises Unwelcome: a revoked host hears it at the next nudge."""
    return _steadily(lambda at: _desired(host, credentials, at.wall), read, looks=True)


def _desired(host: KnownHost, credentials: Sequence[str], now: dt.datetime) -> Desired:
    _check(host, credentials, now)
    with _refusals():
        return _whole(host, scheduler_api.desired(host.id, now))


def prove(host: KnownHost, credentials: Sequence[str], proof: Proof, now: dt.datetime) -> Desired:
    """What should be, with the credential that a signed challenge brings. Raises Unwelcome."""
    _check(host, credentials, now)
    with _refusals():
        text, expires = scheduler_api.prove(host.id, proof, now)
        wanted = _whole(host, scheduler_api.desired(host.id, now))
        return dataclasses.replace(wanted, credential=text, credential_expires_at=expires, challenge="")


def renew(credential: str, request: RenewRequest, now: dt.datetime) -> RenewAnswer:
    """A challenge, or a new credential for its signature. Raises Unwelcome."""
    with _refusals():
        return scheduler_api.renew(credential, request, now)


def _steadily(act: Callable[[Moment], Desired], read: Read, *, looks: bool) -> Desired:
    try:
        return wall_clock.steadily(act, read, looks=looks)
    except ClockWasSet as error:
        raise Unwelcome(str(error), retry=True) from None


def accept_samples(host: KnownHost, batch: SampleBatch, now: dt.datetime) -> None:
    """Pass samples on. They are acknowledged later, by ``committed_sequence``."""
    telemetry_api.accept_batch(host.id, batch, now)


def accept_health(host: KnownHost, event: Health, now: dt.datetime) -> None:
    """Keep a hardware event."""
    telemetry_api.accept_health(host.id, event, now)


def store_log(host: KnownHost, chunk: LogChunk) -> None:
    """Keep a piece of a run's log. Raises Unwelcome for a run of another host, and LogNotKept."""
    try:
        with _refusals():
            scheduler_api.store_log(host.id, chunk)
    except OSError as error:
        raise LogNotKept(str(error)) from None


def note_refused(host: KnownHost, reason: str, now: dt.datetime) -> None:
    """Keep, for the host's page, that another agent of this host was turned away."""
    scheduler_api.refused(host.id, reason, now, code="agent_second")


def note_unread(host: KnownHost, reason: str, now: dt.datetime) -> None:
    """Keep, for the host's page, that its agent was turned away because nothing that it says can be read."""
    scheduler_api.refused(host.id, reason, now)


def has_agent(host_id: int) -> bool:
    """Whether an agent has joined as this host and was not revoked since."""
    return Host.objects.filter(pk=host_id).exclude(credential_hash="").exists()


def _check(host: KnownHost, credentials: Sequence[str], now: dt.datetime) -> None:
    """The connection's credential is still good, or else one that was sent down it since. In this order: the newer one counts
    from its first use, and the agent may not have got it."""
    for credential in credentials:
        if scheduler_api.authenticate(credential, now) == host.id:
            return
    raise Unwelcome("this host's credential has expired or was revoked; join again with a new token")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except scheduler_api.AgentRefused as refused:
        raise Unwelcome(str(refused), retry=refused.retry) from None


def _whole(host: KnownHost, wanted: Desired) -> Desired:
    """With what telemetry says about its samples: the scheduler does not know of telemetry."""
    return dataclasses.replace(wanted, committed_sequence=telemetry_api.committed_sequence(host.id))
