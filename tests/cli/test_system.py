"""Test the health of the installation on the command line."""

from __future__ import annotations

import json
from datetime import timedelta

from django.utils import timezone

from portal.redis_state.announced_maintenance import publish_maintenance
from scheduler.models import DatabaseMaintenance
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.cli.test_hosts import run_ok
from tests.world import World


def test_an_operator_reads_the_checks_and_others_may_not(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    shown = run_ok(gpupool, "system")
    assert "the worst state is bad" in shown and "Age of the last backup" in shown
    found = json.loads(run_ok(gpupool, "system --state unknown --json"))
    assert {each["state"] for each in found["checks"]} == {"unknown"}
    assert "backup" in {each["check"] for each in found["checks"]}
    sign_in(served_world.vision.lead)
    refused = gpupool("system")
    assert refused.code != 0 and "Only operators and auditors see the health of the system." in refused.err


def test_each_command_prints_an_announced_maintenance_of_the_database_once(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    now = timezone.now()
    announced = DatabaseMaintenance(starts_at=now, ends_at=now + timedelta(minutes=5), reason="disk é")
    publish_maintenance(announced)
    try:
        found = gpupool("queue", "--json")
    finally:
        publish_maintenance(None)
    assert found.err.count("maintenance of the database until") == 1 and ": disk é. Nothing new" in found.err
    json.loads(found.out)
    assert "maintenance" not in gpupool("queue").err
