"""Test the health of the installation on the command line."""

from __future__ import annotations

import json

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
