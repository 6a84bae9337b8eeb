"""Test gangs: the owner's options, opening a gang, and the member that the page names as the first to end."""

from __future__ import annotations

from typing import Any

import pytest

from portal.errors import Invalid, NotAllowed
from portal.services.work import launch, workspaces
from portal.wording import reason_texts
from scheduler.cycle import engine
from scheduler.models import Run, Workload
from tests.portal.rejections import rejected
from tests.world import World, world

__all__ = ["world"]


def submitted(world: World, **wish: Any) -> Workload:
    team = world.vision
    return launch.submit_job(
        actor=team.member,
        project=team.project,
        pool=world.shared,
        name="gang",
        command="train",
        units=1,
        hosts=2,
        now=world.now,
        **wish,
    )


def test_a_gang_restarts_unless_its_owner_chose_that_it_ends(world: World) -> None:
    assert submitted(world).if_member_ends == "restart"
    ends = submitted(world, if_member_ends="end")
    assert ends.if_member_ends == "end"
    again = launch.relaunch_workload(actor=world.vision.member, workload=ends, now=world.now)
    assert again.if_member_ends == "end"


def test_an_unknown_choice_is_refused_with_a_message(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        submitted(world, if_member_ends="panic")
    assert "panic" in refused.value.fields["if_member_ends"]


def test_a_gang_is_opened_by_its_owner_once_its_first_host_is_ready(world: World) -> None:
    job = submitted(world)
    engine.run_cycle("test", world.now)
    Workload.objects.filter(pk=job.pk).update(state="running")
    job.refresh_from_db()
    by_its_owner: dict[str, Any] = {
        "actor": world.vision.member,
        "workload": job,
        "session_key": "",
        "now": world.now,
    }
    with rejected("does not listen on"):
        workspaces.open_workspace(**by_its_owner)
    Run.objects.filter(workload=job, rank=1).update(ready_at=world.now)
    with rejected("does not listen on"):
        workspaces.open_workspace(**by_its_owner)
    Run.objects.filter(workload=job, rank=0).update(ready_at=world.now)
    with pytest.raises(NotAllowed):
        workspaces.open_workspace(**{**by_its_owner, "actor": world.operator})
    assert "/.gpupool/enter?code=" in workspaces.open_workspace(**by_its_owner)


def test_the_page_says_which_member_ended_first() -> None:
    sentence = reason_texts.decision_sentence(
        "restarted", "failed", {"rank": 1, "host": "gpu-07", "exit_code": 137}
    )
    assert sentence == "Its part 1 on gpu-07 was the first to end. It failed with exit code 137."
    assert reason_texts.decision_sentence(
        "refused", "failed", {"exit_code": 1}
    ) == reason_texts.reason_sentence("failed", {"exit_code": 1})
