"""Test health rules on the command line: operators change them, everybody can read them."""

from __future__ import annotations

import json

from portal.models import AuditEvent
from telemetry.models import HealthRule
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.cli.test_hosts import run_ok
from tests.world import World


def line_of(output: str, code: str) -> str:
    return next(line for line in output.splitlines() if line.startswith(f"{code} "))


def test_every_user_can_list_rules_with_their_sources(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    output = run_ok(gpupool, "health-rule list")
    codes = [line.split()[0] for line in output.splitlines() if line.startswith("xid:")]
    assert codes == sorted(codes, key=lambda code: int(code[4:])) and len(codes) > 100, (
        "codes are sorted by number"
    )
    row = line_of(output, "xid:109")
    assert "switching between contexts took too long" in row and "quarantine_gpu" in row
    assert "at 3 people's work within 24 h" in row and "as it began" in row
    assert "NVIDIA, Xid catalogue" in row and "ignored as a mistake of the program" in row
    assert "at the first" in line_of(output, "xid:79")
    shown = run_ok(gpupool, "health-rule show 109")
    assert (
        "docs.nvidia.com" in shown
        and "github.com/NVIDIA/k8s-device-plugin" in shown
        and "began as" not in shown
    )
    assert line_of(run_ok(gpupool, "health-rule list 79"), "xid:79")
    found = run_ok(gpupool, "health-rule list nvlink --action warn")
    assert "nvlink:down" in found and "xid:79" not in found
    assert "No rule is changed or added." in run_ok(gpupool, "health-rule list --changed")
    assert "An event without a rule is only recorded" in run_ok(gpupool, "health-rule list unicorn")
    [rule] = json.loads(run_ok(gpupool, "health-rule list xid:79 --json"))
    assert (rule["origin"], rule["default"]["action"]) == ("default", "cordon")


def test_a_rule_is_changed_listed_as_changed_and_reset(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    output = run_ok(
        gpupool,
        "health-rule set xid:109 --action warn --repeats 5 --within 12h --counts events --why 'a library'",
    )
    assert "xid:109 (switching between contexts took too long): warn, at 5 within 12 h." in output
    assert "Default: quarantine_gpu, at 3 people's work within 24 h;" in output
    rule = HealthRule.objects.get(code="xid:109")
    assert (rule.action, rule.repeats, rule.window_seconds, rule.counts) == ("warn", 5, 43_200, "events")
    kept = AuditEvent.objects.get(verb="set_health_rule")
    assert (kept.via, kept.why, kept.target_name) == ("cli", "a library", "xid:109")
    run_ok(gpupool, "health-rule set 109 --repeats 7")
    rule.refresh_from_db()
    assert (rule.action, rule.repeats) == ("warn", 7), "options that were not given keep their value"
    changed = run_ok(gpupool, "health-rule list --changed")
    assert "changed" in line_of(changed, "xid:109") and "xid:79" not in changed
    assert "began as" in run_ok(gpupool, "health-rule show xid:109")
    assert "xid:109 has its default again: quarantine_gpu" in run_ok(gpupool, "health-rule reset xid:109")
    again = gpupool("health-rule", "reset", "xid:109")
    assert again.code == 1 and "xid:109 is at its default already." in again.err


def test_a_rule_is_added_and_removed(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    sign_in(served_world.people["operator"])
    output = run_ok(
        gpupool,
        "health-rule add 999 --meaning 'seen before a board died' --action quarantine_gpu --repeats 2",
    )
    assert output == "xid:999 (seen before a board died): quarantine_gpu, at 2 within 1 h.\n"
    row = line_of(run_ok(gpupool, "health-rule list --changed"), "xid:999")
    assert "added" in row and "this organisation" in row
    assert "has no default" in gpupool("health-rule", "reset", "xid:999").err
    assert "xid:999 has no rule now" in run_ok(gpupool, "health-rule remove xid:999")
    assert not HealthRule.objects.filter(code="xid:999").exists()
    kept = gpupool("health-rule", "remove", "xid:79")
    assert kept.code == 1 and "is built in" in kept.err


def test_a_wrong_value_is_reported_with_the_allowed_values(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    for verb in (["show"], ["set", "--action", "note"], ["reset"], ["remove"]):
        answer = gpupool("health-rule", verb[0], "xid:9999", *verb[1:])
        assert answer.code == 4 and "code is 'xid:9999'; allowed: a code that has a rule" in answer.err, verb
    assert "--action, --repeats, --within or --counts" in gpupool("health-rule", "set", "79").err
    assert (
        "repeats is 2000; allowed: a whole number from 1 to 1,000"
        in gpupool("health-rule", "set", "79", "--repeats", "2000").err
    )
    wrong = gpupool("health-rule", "add", "XID79", "--meaning", "x", "--action", "note").err
    assert "code is 'XID79'; allowed: xid: and a number" in wrong
    assert gpupool("health-rule", "set", "79", "--action", "explode").code == 2
    sign_in(served_world.vision.member)
    assert "Only an operator" in gpupool("health-rule", "set", "79", "--action", "note").err
    assert HealthRule.objects.get(code="xid:79").origin == "default"
