"""Read the health of the installation, once for the page, the API, the command line and the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from portal import policy
from portal.processes.reports import VERSION
from portal.reads.system.checks import BY_SEVERITY, HealthCheck, HealthState
from portal.reads.system.data_checks import (
    audit_stream_check,
    host_checks,
    lag_checks,
    server_clock_check,
    storage_checks,
)
from portal.reads.system.directory_checks import directory_checks
from portal.reads.system.file_checks import backup_checks, certificate_checks
from portal.reads.system.process_checks import edge_checks, engine_checks, process_checks, queue_checks


@dataclass(frozen=True)
class SystemHealth:
    """All checks, those in the worst state first. ``state`` is the worst state among them."""

    at: datetime
    version: str
    checks: tuple[HealthCheck, ...]

    @property
    def state(self) -> HealthState:
        """Return the worst state."""
        return max((each.state for each in self.checks), key=BY_SEVERITY.index)

    @property
    def counts(self) -> list[tuple[HealthState, int]]:
        """Return the number of checks in each state, the worst first."""
        states = [each.state for each in self.checks]
        return [(state, states.count(state)) for state in reversed(BY_SEVERITY)]


def system_health(viewer: policy.Viewer, now: datetime) -> SystemHealth:
    """Return all checks, the worst first. The number of queries is fixed. Raises NotAllowed."""
    policy.require(viewer, "system.see")
    worst_first = sorted(_checks(now), key=lambda each: BY_SEVERITY.index(each.state), reverse=True)
    return SystemHealth(now, VERSION, tuple(worst_first))


def _checks(now: datetime) -> Iterator[HealthCheck]:
    yield from process_checks()
    yield from edge_checks()
    yield from engine_checks(now)
    yield from queue_checks()
    yield from lag_checks(now)
    yield audit_stream_check(now)
    yield from host_checks(now)
    yield from server_clock_check(now)
    yield from storage_checks(now)
    yield from certificate_checks(now)
    yield from backup_checks(now)
    yield from directory_checks(now)
