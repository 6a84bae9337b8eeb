"""Read the checks of the page System health as metrics."""

from __future__ import annotations

from datetime import datetime

from portal.models import User
from portal.reads.monitoring.definitions import MetricValues
from portal.reads.system.checks import HealthState
from portal.reads.system.health import system_health


def system_metrics(viewer: User, now: datetime) -> dict[str, MetricValues]:
    """Return the state and the value of each check."""
    checks = system_health(viewer, now).checks
    return {
        "gpupool_system_state": [
            ((each.check, each.subject, str(state)), float(each.state == state))
            for each in checks
            for state in HealthState
        ],
        "gpupool_system_value": [
            ((each.check, each.subject, each.unit), float(each.value))
            for each in checks
            if each.value is not None
        ],
    }
