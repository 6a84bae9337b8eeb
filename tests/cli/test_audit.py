"""Test the command about the integrity of audit records."""

from __future__ import annotations

import json
from typing import Any

from portal.models import AuditSeal
from portal.services import audit
from portal.services.audit_trail import seals
from tests.world import World


def test_the_command_prints_the_last_seal_for_operators_only(
    gpupool: Any, sign_in: Any, served_world: World
) -> None:
    world = served_world
    audit.record(actor=world.operator, via="web", now=world.now, verb="act", target=world.vision.team)
    seals.seal_new_events(world.now)
    sign_in(world.operator)
    seal = AuditSeal.objects.get()
    shown = gpupool("audit", "integrity")
    assert shown.code == 0 and f"Last seal: 1:{seal.digest}" in shown.out
    assert json.loads(gpupool("audit", "integrity", "--json").out)["digest"] == seal.digest
    sign_in(world.vision.member)
    assert "Only operators and auditors see every change." in gpupool("audit", "integrity").err
