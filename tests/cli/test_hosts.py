"""Operators look after GPUs and hosts from the command line."""

from __future__ import annotations

import json
import shlex

from django.db.backends.postgresql.psycopg_any import NumericRange
from django.utils import timezone

from scheduler.core.model import SLOTS_PER_GPU
from scheduler.models import Diagnostic, Gpu, Host, MaintenanceWindow, Pool, Unit
from telemetry.models import HealthEvent
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.portal.web.work_samples import make_waiting, run_job
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
    assert "out" in told and "wanted" in told and "No hardware event." in told
    HealthEvent.objects.create(
        host=Host.objects.get(name="alpha"), gpu=Gpu.objects.get(host__name="alpha", index=1), event_id="1", source="nvml",
        code="xid:48", detail="row 7, pid=4711, name=train", at=timezone.now(), received_at=timezone.now(), action_taken="warn",
    )  # fmt: skip
    told = done(gpupool, "host health alpha")
    assert "xid:48" in told and "an uncorrectable memory error" in told and "row 7" in told and "4711" not in told
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


def test_hosts_and_status_say_what_is_so_now(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    sign_in(served_world.people["operator"])
    done(gpupool, "host cordon alpha --why 'looking at fans'")
    assert "looking at fans" in done(gpupool, "hosts")
    Host.objects.filter(name="alpha").update(lease_state="silent")
    assert "its agent does not speak; before that: looking at fans" in done(gpupool, "hosts")
    unit = Unit.objects.filter(gpu__host__name="beta", gpu__index=0, retired_at=None)
    unit.update(slots=NumericRange(0, 120), profile="1g.10gb")
    model = Gpu.objects.get(host__name="beta", index=0).model
    [shared] = [row for row in json.loads(done(gpupool, "status --json")) if row["slug"] == "shared"]
    [told_of] = [row for row in shared["models"] if row["model"] == model]
    assert told_of["free_in_parts_gpus"] == 120 / SLOTS_PER_GPU
    assert "free in slices" in (told := done(gpupool, "status")) and "0.1429" in told


def test_why_says_how_many_are_not_yours_to_see(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    other = run_job(served_world, served_world.language, "secret-llm", host="alpha", gpus=[0, 1])
    mine = make_waiting(served_world, served_world.vision, "mri", blockers=[other.pk])
    sign_in(served_world.vision.member)
    told = done(gpupool, f"why {mine.public_id}")
    assert "1 that you may not see" in told and "1 more" not in told and "secret-llm" not in told
