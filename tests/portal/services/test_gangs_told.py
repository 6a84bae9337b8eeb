"""What the owner of a gang is told when one of its hosts is taken out."""

from __future__ import annotations

import datetime as dt

import pytest

from portal import notify
from portal.models import Notification
from scheduler import services
from scheduler.models import Gpu
from tests.scheduler.test_gangs import running_gang
from tests.world import World

SECOND = dt.timedelta(seconds=1)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("whole", [True, False])
def test_the_notice_names_the_host_that_is_taken_out_and_comes_once(world: World, rank: int, whole: bool) -> None:
    workload, agents = running_gang(world, 3)
    ill, at = agents[rank].host, world.now + 60 * SECOND
    if whole:
        assert services.drain_host(ill, reason="a fan", now=at)
    else:
        assert services.quarantine_gpu(Gpu.objects.get(host=ill, index=0), reason="xid:79", now=at)
    for seconds in (1, 30):
        notify.tell(at + seconds * SECOND)
    told = Notification.objects.get(user=workload.owner, kind="has_to_move")
    assert (told.numbers["host"], told.numbers["words"]) == (ill.name, "a fan" if whole else "xid:79")
