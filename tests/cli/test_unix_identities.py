"""Test the commands about Unix identities, the work of pools and the limits of homes."""

from __future__ import annotations

import json
from collections.abc import Callable

from portal.models import AuditEvent, User
from scheduler.models import UnixIdentity
from tests.cli.conftest import Gpupool
from tests.world import World

SignIn = Callable[[User], str]


def test_an_operator_sets_identities_and_the_work_of_a_pool(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.operator)
    assert gpupool("person", "unix-identity", "vision-1").code == 4
    arguments = ("--uid", "4101", "--gid", "4200", "--group", "4300", "--group", "4301", "--why", "asked")
    done = gpupool("person", "set-unix-identity", "vision-1", *arguments)
    assert done.code == 0 and "4300, 4301" in done.out and "an operator" in done.out, done.err
    assert AuditEvent.objects.get(verb="set_unix_identity").via == "cli"
    refused = gpupool("person", "set-unix-identity", "vision-2", "--uid", "4101")
    assert refused.code != 0 and "two people cannot have one number" in refused.err
    shown = json.loads(gpupool("person", "unix-identity", "vision-1", "--json").out)
    assert (shown["uid"], shown["home"]) == (4_101, "/home/vision-1")
    assert gpupool("person", "remove-unix-identity", "vision-1").code == 0
    assert not UnixIdentity.objects.exists()

    given = ("--runs-as", "person", "--perf-events", "--home-limit", "50")
    work = gpupool("pool", "work", "shared", *given)
    assert work.code == 0 and "its owner" in work.out and "allowed" in work.out and "50 GiB" in work.out
    shown = json.loads(gpupool("pool", "work", "shared", "--home-limit", "none", "--json").out)
    assert shown == {"runs_as": "person", "perf_events": True, "home_limit_gib": None}
    assert "50 of" not in gpupool("pool", "work", "shared").out
    assert gpupool("pool", "work", "shared", "--home-limit", "much").code != 0
    assert "at most 7 GiB" in gpupool("team", "home-limit", "vision", "7").out
    assert "the limit of the pool" in gpupool("team", "home-limit", "vision", "none").out
