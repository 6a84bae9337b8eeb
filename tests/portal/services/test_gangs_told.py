"""What the owner of a gang is told when one of its hosts is taken out."""

from __future__ import annotations

import datetime as dt

import pytest

from portal import notify
from portal.models import Notification
from portal.selectors.work import Piece
from portal.web import attempts
from scheduler import services
from scheduler.models import Gpu
from tests.scheduler.test_gangs import all_go, running_gang
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


def test_its_page_says_how_the_attempt_ended_and_not_how_the_first_member_was_stopped_for_it(world: World) -> None:
    workload, agents = running_gang(world, 3)
    at = world.now + 60 * SECOND
    assert services.quarantine_gpu(Gpu.objects.get(host=agents[1].host, index=0), reason="xid:79", now=at)
    all_go(workload, agents, at)
    (row,) = attempts.rows(Piece(workload), world.vision.member)
    assert (row["state"], row["word"]) == ("failed", "GPU error") and "It was stopped" not in row["why"]


def test_its_page_gives_the_exit_code_of_the_member_that_failed(world: World) -> None:
    workload, agents = running_gang(world, 3)
    at = world.now + 60 * SECOND
    agents[2].end(agents[2].running[0], at, outcome="failed", exit_code=7)
    agents[2].sync(at)
    all_go(workload, agents[:2], at)
    (row,) = attempts.rows(Piece(workload), world.vision.member)
    assert "exit code 7" in row["why"]
