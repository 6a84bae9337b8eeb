"""What an agent's connection reads and writes in the rows: the edge's only way to scheduler and telemetry for agents.
Plain functions, run in threads; ``now`` comes from the caller."""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass

from agent.protocol import VERSION, Desired, Health, JoinAnswer, JoinRequest, LogChunk, Observed, SampleBatch
from scheduler import agent_api as scheduler_api
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


def join(request: JoinRequest, now: dt.datetime) -> JoinAnswer:
    """Spend a join token. Raises Unwelcome."""
    _check_version(request.version)
    return scheduler_api.join(request, now=now)


def authenticate(credential: str, now: dt.datetime) -> KnownHost:
    """The host whose credential this is. Raises Unwelcome."""
    host = scheduler_api.authenticate(credential, now=now)
    return KnownHost(host.pk, host.name)


def _check_version(version: int) -> None:
    if version != VERSION:
        raise Unwelcome(f"version: {version} is not spoken here; allowed: {VERSION}")
