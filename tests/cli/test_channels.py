"""Test the commands about notice channels."""

from __future__ import annotations

import json

from portal.models import NoticeChannel, NoticeMessage
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.cli.test_hosts import run_ok
from tests.world import World


def test_a_channel_is_created_tested_changed_and_removed_on_the_command_line(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    assert "You have no notice channel." in run_ok(gpupool, "channel list")
    text = run_ok(gpupool, "channel create night --kind mail --topic work --quiet 22:00-07:00")
    assert "Next: gpupool channel test night" in text
    channel = NoticeChannel.objects.get()
    assert (channel.topics, f"{channel.quiet_from:%H:%M}") == (["work"], "22:00")
    assert "on its way" in run_ok(gpupool, "channel test night")
    log = json.loads(run_ok(gpupool, "channel log night --json"))
    assert [row["state"] for row in log] == ["waiting"]
    assert gpupool("channel", "send-again", log[0]["id"]).code == 1
    NoticeMessage.objects.update(state="failed")
    assert "sent again" in run_ok(gpupool, f"channel send-again {log[0]['id']}")
    changed = run_ok(gpupool, "channel change night --off --digest daily --quiet none")
    assert "switched off" in changed
    listed = run_ok(gpupool, "channel list")
    assert "daily" in listed and "switched off" in listed
    wrong = gpupool("channel", "test", "day")
    assert wrong.code == 2 and "allowed: night" in wrong.err
    assert "night is removed." in run_ok(gpupool, f"channel remove {channel.public_id}")
    assert not NoticeChannel.objects.exists()
