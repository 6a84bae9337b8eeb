"""Test the commands about tokens, service accounts and the settings of security."""

from __future__ import annotations

import json

from portal.models import ApiToken, Organisation, User
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.cli.test_hosts import run_ok
from tests.world import World


def test_tokens_are_created_listed_and_revoked_on_the_command_line(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    made = json.loads(run_ok(gpupool, "token create laptop --scope read --ends 'tomorrow 00:00' --json"))
    assert made["scopes"] == ["read"] and made["token"].startswith("gpp_")
    text = run_ok(gpupool, "token create script")
    assert "has the scopes read, submit and ends on" in text
    listed = run_ok(gpupool, "token list")
    assert "laptop" in listed and "never" in listed and made["token"] not in listed
    assert "The token laptop no longer works." in run_ok(gpupool, f"token revoke {made['id']}")
    assert ApiToken.objects.get(name="laptop").revoked_at is not None
    sign_in(served_world.stranger)
    assert gpupool("token", "revoke", str(made["id"])).code == 4


def test_a_lead_manages_a_service_account_on_the_command_line(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.lead)
    member = served_world.vision.member.username
    assert "ci is created." in run_ok(gpupool, "service-account create ci --team vision --purpose nightly")
    assert "nightly" in run_ok(gpupool, "service-account list")
    assert f"its owner is {member}." in run_ok(gpupool, f"service-account change ci --owner {member}")
    token = json.loads(run_ok(gpupool, "service-account token ci pipeline --json"))
    assert token["user"] == "ci"
    assert "pipeline" in run_ok(gpupool, "service-account token ci")
    assert "ci is closed" in run_ok(gpupool, "service-account change ci --close")
    assert not User.objects.get(username="ci").is_active
    assert gpupool("service-account", "change", "ci").code == 2
    assert gpupool("service-account", "token", "none").code == 4


def test_operators_change_the_settings_of_security_on_the_command_line(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.operator)
    assert "at most 365 days" in run_ok(gpupool, "security show")
    changed = run_ok(gpupool, "security set --token-days 90 --own-requests refuse")
    assert "at most 90 days" in changed and "another person" in changed
    row = Organisation.objects.get()
    assert (row.token_days, row.separate_approver) == (90, True)
    assert "(default)" in run_ok(gpupool, "security set --own-requests default")
    changed = run_ok(gpupool, "security set --leaver-work hand-over")
    assert "a lead is in charge" in changed and Organisation.objects.get().leaver_work == "hand_over"
    assert gpupool("security", "set").code == 2
    sign_in(served_world.vision.member)
    assert gpupool("security", "set", "--token-days", "5").code == 1
