"""Test that a promise holds although its snapshot is read query by query, under the lock of the pool.

A decision under a lock reads its snapshot in READ COMMITTED, so another transaction may commit between two
queries. Reservations, placements and time limits of a pool change only under its lock. Hosts and units may
change meanwhile: units of a host that was not read do not exist for the decision.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from scheduler.core.model import snapshot as model
from scheduler.cycle import snapshot_rows
from scheduler.models import Pool, Reservation
from tests.world import H100, World

pytestmark = pytest.mark.django_db


@pytest.fixture
def late_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host beta appear between the query of hosts and that of units, as if it joined meanwhile."""
    real = snapshot_rows.SnapshotReader.hosts

    def hosts(
        self: snapshot_rows.SnapshotReader, ids: Collection[int] | None = None
    ) -> dict[int, model.HostInfo]:
        return {pk: row for pk, row in real(self, ids).items() if row.name != "beta"}

    monkeypatch.setattr(snapshot_rows.SnapshotReader, "hosts", hosts)


def reserve(world: World, *, key: str | None, hosts: int) -> Any:
    """Request all GPUs of ``hosts`` hosts for an hour of tomorrow, with an Idempotency-Key or without one."""
    client = APIClient()
    client.force_authenticate(world.vision.member)
    start = world.now + timedelta(days=1)
    body = {
        "project": "vision/vision-main",
        "pool": "shared",
        "models": [H100],
        "units": 8,
        "hosts": hosts,
        "start": start.isoformat(),
        "end": (start + timedelta(hours=1)).isoformat(),
        "name": "evening",
    }
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/api/v1/reservations/", body, format="json", headers=headers)


@pytest.mark.parametrize("key", [None, "k1"])
def test_units_of_a_host_that_joins_meanwhile_are_not_promised(
    today_world: World, late_beta: None, key: str | None
) -> None:
    Pool.objects.update(approval_above_gpus=64)
    refused = reserve(today_world, key=key, hosts=2)
    assert refused.status_code in (400, 409), refused.json()
    assert not Reservation.objects.exists()
    made = reserve(today_world, key=None if key is None else "k2", hosts=1)
    assert made.status_code == 201, made.json()
    again = reserve(today_world, key=None if key is None else "k3", hosts=1)
    assert again.status_code in (400, 409), again.json()
    assert Reservation.objects.count() == 1
