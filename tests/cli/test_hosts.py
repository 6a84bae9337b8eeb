"""Operators look after GPUs and hosts from the command line."""

from __future__ import annotations

import json
import shlex

from scheduler.models import Diagnostic, Gpu, Host, MaintenanceWindow, Pool
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.world import World


def done(gpupool: Gpupool, line: str) -> str:
    answer = gpupool(*shlex.split(line))
    assert answer.code == 0, f"{line}: {answer.err}"
    return answer.out


def test_a_gpu_is_diagnosed_taken_out_and_returned(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    sign_in(served_world.people["operator"])
    assert "Being looked at: GPU 1" in done(gpupool, "host diagnose alpha --gpu 1 --why noise")
    assert Diagnostic.objects.get().why == "operator"
    assert "being diagnosed already" in gpupool("host", "diagnose", "alpha", "--gpu", "1").err
    assert "gpu is '99'; allowed: 0, 1" in gpupool("host", "diagnose", "alpha", "--gpu", "99").err
    assert "is out" in done(gpupool, "host take-out-gpu alpha 1 --why 'goes back'")
    assert Gpu.objects.get(host__name="alpha", index=1).state_reason == "goes back"
    told = done(gpupool, "host health alpha")
    assert "out" in told and "wanted" in told
    assert json.loads(done(gpupool, "host health alpha --json"))["gpus"][1]["repair_state"] == "out"
    assert "is well" in done(gpupool, "host return-gpu alpha 1")


def test_a_host_is_closed_and_opened_and_its_maintenance_announced_and_taken_back(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    for verb, state in (("cordon", "cordoned"), ("drain", "draining"), ("return", "in_service")):
        done(gpupool, f"host {verb} alpha --why fans")
        assert Host.objects.get(name="alpha").admin_state == state
    line = "host maintenance alpha --start 'tomorrow 08:00' --end 'tomorrow 12:00' --why fans"
    assert "alpha is away from" in done(gpupool, line)
    window = MaintenanceWindow.objects.get()
    assert f"(window {window.pk})" in done(gpupool, "host health alpha")
    assert "taken back" in done(gpupool, f"host cancel-maintenance alpha {window.pk}")
    assert gpupool("host", "cancel-maintenance", "alpha", str(window.pk)).code != 0


def test_what_a_pool_does_by_itself_is_shown_and_changed(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    assert "report" in done(gpupool, "repair-policy shared")
    done(gpupool, "repair-policy shared --strays end --idle-every 24 --not-after-quarantine")
    pool = Pool.objects.get(slug="shared")
    assert (pool.stray_action, pool.diagnose_every_hours, pool.diagnose_after_quarantine) == ("end", 24, False)
    refused = gpupool("repair-policy", "shared", "--deadline", "1")
    assert refused.code != 0 and "30 to 14,400 seconds" in refused.err


def test_who_is_no_operator_is_told_so(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    sign_in(served_world.vision.member)
    assert "Only an operator" in gpupool("host", "diagnose", "alpha").err
    assert gpupool("host", "health", "alpha").code == 0
