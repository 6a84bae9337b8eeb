"""Keep the last answers of the database, to renew leases while the database does not answer.

A lease is renewed from memory only as a direct continuation of a lease that the database has confirmed. The
conditions are in ``LeaseMemory.renewal``; docs/decisions/0020 explains why they suffice. All times are
CLOCK_BOOTTIME in seconds, which nobody can set.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent.protocol import Desired, Observed
from portal.edge.agents.database_calls import AuthenticatedHost
from scheduler.coordination.leases import MEMORY_RENEWAL_SECONDS


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The identity of one process of an agent, as its reports contain it."""

    instance: str
    boot_id: str
    start: str


@dataclass(slots=True)
class ConfirmedLease:
    """A lease that the database has confirmed on a connection of this process."""

    host: AuthenticatedHost
    identity: AgentIdentity
    credentials: tuple[str, ...]  # with a renewed credential that the agent may have received
    stream_key: str  # key of the connection; only the agent at its other end knows it
    desired: Desired
    confirmed_at: float  # arrival of the last report that the database has handled
    renewed_at: float  # arrival of the last report that renewed the lease, by the database or from memory


def identity_of(observed: Observed) -> AgentIdentity:
    return AgentIdentity(observed.instance, observed.boot_id, observed.start)


class LeaseMemory:
    """The confirmed leases of one edge process, by host.

    ``renews_until`` is the end of the time in which this process may renew leases from memory. Each contact
    with the database moves it; before the first contact it is 0. ``maintenance_until`` is the end of an
    announced maintenance of the database.
    """

    def __init__(self) -> None:
        self._leases: dict[int, ConfirmedLease] = {}
        # The last renewal that the database does not know, by host and instance of the agent.
        self._unwritten: dict[tuple[int, str], float] = {}
        self.renews_until = 0.0
        self.maintenance_until = 0.0

    def confirm(
        self,
        host: AuthenticatedHost,
        observed: Observed,
        credentials: Sequence[str],
        stream_key: str,
        desired: Desired,
        heard_at: float,
    ) -> None:
        """Keep the database's answer to a report that arrived at ``heard_at``."""
        earlier, identity = self._leases.get(host.id), identity_of(observed)
        renewed_at = heard_at
        if earlier is not None and earlier.identity == identity:
            # If the answer is late, later reports have been answered from memory.
            renewed_at = max(heard_at, earlier.renewed_at)
        self._leases[host.id] = ConfirmedLease(
            host, identity, (*credentials, desired.credential), stream_key, desired, heard_at, renewed_at
        )
        key = (host.id, observed.instance)
        if self._unwritten.get(key, heard_at + 1) <= heard_at:
            del self._unwritten[key]  # the database has stored a later report

    def update_desired(self, host: int, desired: Desired) -> None:
        """Replace the kept desired state, because the database has returned a newer one without a report."""
        if host in self._leases:
            self._leases[host].desired = desired

    def forget(self, host: int) -> None:
        """Renew no more leases of a host from memory, because the database has rejected its agent."""
        self._leases.pop(host, None)

    def renewal(self, host: int, observed: Observed, heard_at: float) -> Desired | None:
        """Renew the lease of a host, and return the answer to its report. Return None if this is not allowed.

        It is allowed under these conditions:

        - The last answer of the database for this host was a desired state, to the same process of the agent.
        - The lease has not ended meanwhile. So the database has not given the host's work to another host.
        - This process has had contact with the database within MEMORY_RENEWAL_SECONDS, and the database has
          handled a report of the host within this time. During an announced maintenance of the database,
          both limits are its end.

        The answer names the runs that the database named last, so nothing new is placed.
        """
        lease = self._leases.get(host)
        if lease is None or lease.identity != identity_of(observed) or not self._is_allowed(lease, heard_at):
            return None
        lease.renewed_at = max(lease.renewed_at, heard_at)
        self._unwritten[host, observed.instance] = lease.renewed_at
        return replace(lease.desired, renewed_from_memory=True, challenge="")

    def may_renew(self, host: int, now: float) -> bool:
        """Return True if a report of the host at ``now`` could be answered from memory."""
        lease = self._leases.get(host)
        return lease is not None and self._is_allowed(lease, now)

    def _is_allowed(self, lease: ConfirmedLease, now: float) -> bool:
        is_continuation = now - lease.renewed_at <= lease.desired.lease_seconds
        is_recent = now <= max(lease.confirmed_at + MEMORY_RENEWAL_SECONDS, self.maintenance_until)
        return is_continuation and is_recent and now <= self.renews_until

    def resumed(self, credential: str, stream_key: str, now: float) -> ConfirmedLease | None:
        """Return the lease of an agent that connects again without an answer of the database.

        The agent proves with the key of its last connection that this connection was to this process.
        Therefore no other edge has given it a newer desired state. Return None if the credential or the key
        is not the last one.
        """
        if not stream_key or not credential:
            return None
        for lease in self._leases.values():
            if (
                hmac.compare_digest(lease.stream_key.encode(), stream_key.encode())
                and credential in lease.credentials
                and self._is_allowed(lease, now)
            ):
                return lease
        return None

    def unwritten(self) -> dict[tuple[int, str], float]:
        """Return the times of the renewals that the database does not know, by host and agent's instance."""
        return dict(self._unwritten)

    def written(self, renewals: Mapping[tuple[int, str], float]) -> None:
        """Record that the database has stored these renewals."""
        for key, renewed_at in renewals.items():
            if self._unwritten.get(key) == renewed_at:
                del self._unwritten[key]
