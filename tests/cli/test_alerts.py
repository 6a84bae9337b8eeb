"""Test alerts on the command line: everybody lists them, operators handle them and change rules."""

from __future__ import annotations

import json

from telemetry.models import Alert, AlertRule
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.cli.test_hosts import run_ok
from tests.telemetry.rows import alert_of, workload
from tests.world import World


def test_an_operator_lists_acknowledges_and_snoozes_an_alert(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    alert = alert_of(workload(served_world, served_world.vision, name="pretrain"))
    sign_in(served_world.vision.member)
    assert "none was busy for 30 minutes" in run_ok(gpupool, "alerts list")
    assert "Only an operator" in gpupool("alerts", "ack", str(alert.public_id)).err
    sign_in(served_world.people["operator"])
    assert "pretrain: acknowledged." in run_ok(gpupool, f"alerts ack {alert.public_id}")
    assert "snoozed until" in run_ok(gpupool, f"alerts snooze {alert.public_id} --for 8h")
    [row] = json.loads(run_ok(gpupool, "alerts list --state snoozed --json"))
    assert (row["subject"], row["acknowledged_by"]) == ("pretrain", served_world.operator.username)
    assert Alert.objects.get().state == "snoozed"
    assert "No alert." in run_ok(gpupool, "alerts list --kind hot")


def test_an_operator_changes_and_resets_a_rule(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    changed = run_ok(gpupool, "alerts set-rule shared hot --begin 92.5 --begin-minutes 10 --why summer")
    assert "hot: begins at 92.5 °C for 10 min, ends at 82 °C for 5 min." in changed
    assert AlertRule.objects.get().begin == 92.5
    assert "changed" in run_ok(gpupool, "alerts rules shared")
    refused = gpupool("alerts", "set-rule", "shared", "hot", "--end", "95")
    assert "end is 95; allowed: a number from 0 to below 92.5" in refused.err
    assert "begins at 88 °C" in run_ok(gpupool, "alerts reset-rule shared hot")
    assert "Give at least one option" in gpupool("alerts", "set-rule", "shared", "hot").err


def test_the_owner_of_an_unused_job_postpones_its_stop(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    job = workload(served_world, served_world.vision, name="pretrain")
    alert_of(job, stop_at=served_world.now)
    sign_in(served_world.vision.member)
    assert "pretrain is kept until" in run_ok(gpupool, "keep pretrain --for 2h")
    assert Alert.objects.get().postponed == 1
    refused = gpupool("keep", "pretrain", "--for", "2h")
    assert refused.code == 1 and "No stop of pretrain is planned" in refused.err
    Alert.objects.update(stop_at=served_world.now)
    too_long = gpupool("keep", str(job.public_id), "--for", "3h")
    assert "seconds is 10800; allowed: a whole number from 60 to 7,200 seconds." in too_long.err
