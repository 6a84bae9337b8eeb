"""Test the operators' commands for GPUs and hosts."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange, NumericRange
from django.utils import timezone

from portal.models import AuditEvent, Template
from scheduler import services as scheduling
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import (
    BoundUnit,
    Diagnostic,
    Gpu,
    Host,
    JoinToken,
    MaintenanceWindow,
    Pool,
    Reservation,
    Unit,
)
from telemetry.models import HealthEvent, ReadingFault
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.portal.web.work_samples import make_waiting, reserve, run_job
from tests.seeds import first_cases
from tests.world import World


def run_ok(gpupool: Gpupool, line: str) -> str:
    answer = gpupool(*shlex.split(line))
    assert answer.code == 0, f"{line}: {answer.err}"
    return answer.out


def test_a_gpu_is_diagnosed_taken_out_and_returned(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    assert "Diagnostic started: GPU 1" in run_ok(gpupool, "host diagnose alpha --gpu 1 --why noise")
    assert Diagnostic.objects.get().why == "operator"
    assert "is being diagnosed: wait" in gpupool("host", "diagnose", "alpha", "--gpu", "1").err
    assert "gpu is '99'; allowed: 0, 1" in gpupool("host", "diagnose", "alpha", "--gpu", "99").err
    assert "is out" in run_ok(gpupool, "host take-out-gpu alpha 1 --why 'goes back'")
    assert Gpu.objects.get(host__name="alpha", index=1).state_reason == "goes back"
    output = run_ok(gpupool, "host health alpha")
    assert "out" in output and "wanted" in output and "No hardware event." in output
    HealthEvent.objects.create(
        host=Host.objects.get(name="alpha"),
        gpu=Gpu.objects.get(host__name="alpha", index=1),
        event_id="1",
        source="nvml",
        code="xid:48",
        detail="row 7, pid=4711, name=train",
        at=timezone.now(),
        received_at=timezone.now(),
        action_taken="warn",
    )
    output = run_ok(gpupool, "host health alpha")
    assert "xid:48" in output and "an uncorrectable memory error" in output and "row 7, pid=4711" in output
    assert json.loads(run_ok(gpupool, "host health alpha --json"))["gpus"][1]["repair_state"] == "out"
    assert "is well" in run_ok(gpupool, "host return-gpu alpha 1")


def test_a_missing_gpu_is_listed_and_forgotten(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    gpu = Gpu.objects.get(host__name="alpha", index=1)
    Gpu.objects.filter(pk=gpu.pk).update(
        missing_since=timezone.now(), retired_at=timezone.now(), repair_state="out", state_reason="row 7"
    )
    output = run_ok(gpupool, "host health alpha")
    assert f"GPU 1 ({gpu.uuid}) is missing since" in output and "before that out: row 7" in output
    (missing,) = json.loads(run_ok(gpupool, "host health alpha --json"))["missing_gpus"]
    assert (missing["uuid"], missing["repair_state"], missing["reason"]) == (gpu.uuid, "out", "row 7")
    assert "gpu is 'GPU-x'; allowed:" in gpupool("host", "forget-gpu", "alpha", "GPU-x").err
    assert "is removed from the list" in run_ok(
        gpupool, f"host forget-gpu alpha {gpu.uuid} --why 'went to the vendor'"
    )
    assert json.loads(run_ok(gpupool, "host health alpha --json"))["missing_gpus"] == []


def test_faulty_readings_of_a_host_are_listed(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    sign_in(served_world.people["operator"])
    assert "Faulty readings" not in run_ok(gpupool, "host health alpha")
    now = timezone.now()
    ReadingFault.objects.create(
        host=Host.objects.get(name="alpha"),
        day=now.date(),
        source="nvml",
        reading="power_w",
        kind="out_of_bounds",
        count=3,
        last_at=now,
        last_value=99_999.0,
    )
    output = run_ok(gpupool, "host health alpha")
    assert "Faulty readings of the last 7 days" in output
    assert re.search(r"power_w +out_of_bounds +nvml +3 +99999\.0", output)


def test_a_host_is_cordoned_drained_returned_and_its_maintenance_cancelled(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    for verb, state in (("cordon", "cordoned"), ("drain", "draining"), ("return", "in_service")):
        run_ok(gpupool, f"host {verb} alpha --why fans")
        assert Host.objects.get(name="alpha").admin_state == state
    line = "host maintenance alpha --start 'tomorrow 08:00' --end 'tomorrow 12:00'"
    assert gpupool(*shlex.split(line)).code == 2, "a reason is needed"
    output = run_ok(gpupool, f"{line} --preview")
    assert "stopped with notice and grace" in output and "GPUs that are away meanwhile: 8." in output
    assert not MaintenanceWindow.objects.exists()
    output = run_ok(gpupool, f"{line} --why fans")
    window = MaintenanceWindow.objects.get()
    assert "alpha is away from" in output and f"gpupool host cancel-maintenance alpha {window.pk}" in output
    assert "alpha is in maintenance already" in gpupool(*shlex.split(line), "--preview").err
    assert f"(window {window.pk})" in run_ok(gpupool, "host health alpha")
    assert "is cancelled" in run_ok(gpupool, f"host cancel-maintenance alpha {window.pk}")
    unknown_window = gpupool("host", "cancel-maintenance", "alpha", str(window.pk))
    assert (
        unknown_window.code,
        f"window is '{window.pk}'; alpha has no maintenance window announced." in unknown_window.err,
    ) == (1, True)
    run_ok(gpupool, f"{line} --why fans")
    other = MaintenanceWindow.objects.get()
    refused = gpupool("host", "cancel-maintenance", "alpha", str(window.pk)).err
    assert (
        f"window is '{window.pk}'; announced for alpha: {other.pk} (" in refused
        and " 08:00 to 12:00)." in refused
    )
    assert (
        "use 'return' to return a host to service" in (unknown := gpupool("host", "uncordon", "alpha")).err
        and unknown.code == 2
    )


def test_a_preview_lists_affected_work_and_changes_nothing(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    run_job(served_world, served_world.vision, "storm", host="alpha", gpus=[0, 1])
    run_job(served_world, served_world.language, "desk", host="alpha", gpus=[2], kind="notebook")
    sign_in(served_world.people["operator"])
    before = Host.objects.values().get(name="alpha"), AuditEvent.objects.count()
    output = run_ok(gpupool, "host drain alpha --preview")
    assert "Drain alpha: Nothing new starts on it." in output
    storm, desk = (
        next(line for line in output.splitlines() if line.startswith(name)) for name in ("storm", "desk")
    )
    assert (
        "vision" in storm
        and served_world.vision.member.username in storm
        and "starts elsewhere at once" in storm
    )
    assert "language" in desk and "runs to its end: it can't be preempted" in desk
    assert "GPUs that leave the pool: 8." in output and "Nothing is changed" in output
    assert "Every reservation can be served without it." in output
    assert "runs on" in run_ok(gpupool, "host cordon alpha --preview")
    lease = run_ok(gpupool, "host revoke alpha --preview")
    assert lease.count("stops when its lease ends") >= 2 and "join again with a new join token" in lease
    assert json.loads(run_ok(gpupool, "host drain alpha --preview --json"))["work"][0]["name"] in (
        "storm",
        "desk",
    )
    refused = gpupool("host", "return", "alpha", "--preview")
    assert refused.code == 1 and "alpha is in service already." in refused.err
    assert "is not off" in gpupool("host-is-off", "alpha", "--preview").err
    assert before == (Host.objects.values().get(name="alpha"), AuditEvent.objects.count()), (
        "a preview changes nothing"
    )
    output = run_ok(gpupool, "host drain alpha --why fans")
    assert output.startswith("alpha is draining: nothing new starts on it.\n")
    assert "leaves" in next(line for line in output.splitlines() if line.startswith("storm"))
    assert "runs to its end" in next(line for line in output.splitlines() if line.startswith("desk"))
    assert run_ok(gpupool, "host return alpha") == "alpha is back in service.\n"
    assert run_ok(gpupool, "host cordon gamma").endswith("No workload runs on it.\n")


def test_a_preview_lists_reservations(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    reservation = reserve(served_world, served_world.vision, "review", hours=-1, length=3)
    Reservation.objects.filter(pk=reservation.pk).update(state="active")
    unit = Unit.objects.filter(gpu__host__name="alpha", retired_at=None).earliest("pk")
    BoundUnit.objects.create(
        reservation=reservation,
        unit=unit,
        slots=unit.slots,
        period=DateTimeTZRange(reservation.start, reservation.end),
    )
    sign_in(served_world.people["operator"])
    for verb in ("drain", "cordon", "revoke"):
        output = run_ok(gpupool, f"host {verb} alpha --preview")
        assert "Reservations that get other GPUs: review (vision, " in output, verb


def test_a_host_is_joined_by_the_printed_command_and_revoked(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    unknown = gpupool("host", "join", "h9")
    assert unknown.code == 4 and "There is no host h9; give --pool" in unknown.err
    output = run_ok(gpupool, "host join h9 --pool shared --label rack=r4")
    assert (
        "On a machine without a GPU, add --simulate 8xH100-80GB to the command" in output
        and "does not find its last checkpoint" in output
    )
    host = Host.objects.get(name="h9")
    assert (host.pool.slug, host.labels) == ("shared", {"rack": "r4"})
    [token] = set(re.findall(r"printf %s (\S+) \|", output))
    until = timezone.localtime(JoinToken.objects.get(host=host).expires_at)
    assert f"Run this on the machine, once, by {until.astimezone():%Y-%m-%d %H:%M}:" in output
    assert "systemctl stop" not in output, "the host never had an agent"
    again = json.loads(run_ok(gpupool, "host join h9 --json"))
    assert again["token"] != token and again["command"].endswith("systemctl enable --now gpupool-agent")
    with pytest.raises(scheduling.OperationRejected, match="join_token_expired"):
        redeem_token(token)
    redeem_token(again["token"])
    assert gpupool("host", "join", "h9", "--pool", "vision-only").err.startswith(
        "gpupool: h9 is a host of the pool shared"
    )
    assert gpupool("host", "join", "h9", "--label", "rack=r5").code == 2
    assert "lease" in run_ok(gpupool, "hosts") and "revoked" not in run_ok(gpupool, "hosts")
    output = run_ok(gpupool, "host revoke h9 --why 'its disk left the house'")
    assert output.startswith(
        "The credential of h9 is revoked. The host can join again with a new join token."
    )
    assert Host.objects.get(name="h9").credential_hash == ""
    output = run_ok(gpupool, "host health h9")
    assert re.search(
        r"was revoked \d+ s ago \(its disk left the house\); to join again: gpupool host join h9", output
    )
    line = next(line for line in run_ok(gpupool, "hosts").splitlines() if line.startswith("h9"))
    assert " revoked " in line
    assert "its credential was revoked (its disk left the house); to join again: gpupool host join h9" in line
    [row] = [row for row in json.loads(run_ok(gpupool, "hosts --json")) if row["name"] == "h9"]
    assert (row["state"], row["revoked_why"]) == ("revoked", "its disk left the house") and row["revoked_at"]
    redeem_token(json.loads(run_ok(gpupool, "host join h9 --json"))["token"])
    assert "revoked" not in run_ok(gpupool, "hosts") + run_ok(gpupool, "host health h9"), (
        "the host has joined again"
    )


def test_rejoining_a_simulated_host_prints_its_simulation(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    output = run_ok(gpupool, "host join alpha")
    assert "sudo systemctl stop gpupool-agent && printf %s gpj_" in output, (
        "the running agent holds the state folder"
    )
    assert "Its GPUs were simulated: add --simulate 8xH100-80GB to simulate them" in output
    assert "The present agent of alpha is rejected when another agent has joined." in output
    Host.objects.filter(name="alpha").update(simulated=False)
    assert "simulated" not in run_ok(gpupool, "host join alpha")


def redeem_token(token: str) -> None:
    now = timezone.now()
    scheduling.redeem_join_token(token=token, host_name="h9", instance="i", boot_id="b", now=now)


@pytest.mark.parametrize(
    "verb", first_cases(2, ["cordon", "drain", "return", "revoke", "health", "diagnose"])
)
def test_an_unknown_host_is_reported_with_the_known_hosts(
    gpupool: Gpupool, sign_in: SignIn, served_world: World, verb: str
) -> None:
    sign_in(served_world.people["operator"])
    answer = gpupool("host", verb, "h9")
    assert (answer.code, answer.err) == (4, "gpupool: host is 'h9'; allowed: alpha, beta, delta, gamma.\n")
    sign_in(served_world.language.member)
    assert gpupool("host", verb, "delta").err == "gpupool: host is 'delta'; allowed: alpha, beta, gamma.\n", (
        "delta belongs to the pool of vision"
    )


def test_show_lists_gpus_by_host_and_index(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    run_job(served_world, served_world.vision, "storm", host="alpha", gpus=[3, 0])
    sign_in(served_world.vision.member)
    assert re.search(r"^holds +GPU 0, 3 of alpha$", run_ok(gpupool, "show storm"), re.MULTILINE)
    [run] = json.loads(run_ok(gpupool, "show storm --json"))["runs"]
    assert [(unit["host"], unit["gpu"]) for unit in run["units"]] == [("alpha", 0), ("alpha", 3)]
    assert sorted(unit["uuid"] for unit in run["units"]) == run["gpus"]
    Unit.objects.filter(gpu__host__name="alpha", gpu__index=3).update(profile="1g.10gb")
    assert "GPU 0, 3 (1g.10gb) of alpha" in run_ok(gpupool, "show storm")


def test_the_repair_policy_of_a_pool_is_shown_and_changed(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    assert "report" in run_ok(gpupool, "repair-policy shared")
    run_ok(gpupool, "repair-policy shared --strays end --idle-every 24 --not-after-quarantine")
    pool = Pool.objects.get(slug="shared")
    assert (pool.stray_action, pool.diagnose_every_hours, pool.diagnose_after_quarantine) == (
        "end",
        24,
        False,
    )
    refused = gpupool("repair-policy", "shared", "--deadline", "1")
    assert refused.code != 0 and "30 to 14,400 seconds" in refused.err


def test_a_user_who_is_no_operator_is_rejected(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    assert "Only an operator" in gpupool("host", "diagnose", "alpha").err
    assert gpupool("host", "health", "alpha").code == 0


def test_hosts_and_status_show_the_current_state(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    run_ok(gpupool, "host cordon alpha --why 'looking at fans'")
    assert "looking at fans" in run_ok(gpupool, "hosts")
    Host.objects.filter(name="alpha").update(lease_state="silent")
    assert "its agent is silent; before that: looking at fans" in run_ok(gpupool, "hosts")
    unit = Unit.objects.filter(gpu__host__name="beta", gpu__index=0, retired_at=None)
    unit.update(slots=NumericRange(0, 120), profile="1g.10gb")
    model = Gpu.objects.get(host__name="beta", index=0).model
    [shared] = [row for row in json.loads(run_ok(gpupool, "status --json")) if row["slug"] == "shared"]
    [model_row] = [row for row in shared["models"] if row["model"] == model]
    assert model_row["free_in_parts_gpus"] == 120 / SLOTS_PER_GPU
    assert "free in slices" in (output := run_ok(gpupool, "status")) and re.search(r"\b0\.14\b", output)


def test_why_counts_invisible_workloads(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    other = run_job(served_world, served_world.language, "secret-llm", host="alpha", gpus=[0, 1])
    waiting = make_waiting(served_world, served_world.vision, "mri", blockers=[other.pk])
    sign_in(served_world.vision.member)
    output = run_ok(gpupool, f"why {waiting.public_id}")
    assert "1 not visible to you" in output and "1 more" not in output and "secret-llm" not in output


def test_a_host_is_shown_with_its_inventory_and_rejected_agents(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    Host.objects.filter(name="beta").update(agent_version="")
    bare = run_ok(gpupool, "host show beta")
    assert "never joined" in bare and "8 x H100-80GB" in bare and "turned away" not in bare
    uuids = [gpu.uuid for gpu in served_world.hosts["alpha"].gpus.order_by("index")]
    reported = {
        "network": "private",
        "address": "",
        "driver_version": "550.54",
        "cuda_version": "12.4",
        "users_per_team": True,
        "limits": ["cpu", "memory"],
        "notes": ["Workloads reach the metadata address of the cloud."],
        "diagnostics": ["burn"],
        "gpus": [
            {"uuid": uuid, "pcie": "5.0 x16", "links": dict.fromkeys(uuids, "NVLink")} for uuid in uuids
        ],
    }
    Host.objects.filter(name="alpha").update(
        hardware={"reported": reported},
        agent_version="1.2",
        boot_id="boot-1",
        isolation="bubblewrap",
        cpu_milli=64_000,
        memory_mib=512 * 1024,
        simulated=False,
        disk_full=True,
        disk_full_since=timezone.now(),
        labels={"rack": "r1"},
    )
    scheduling.record_rejected_agent(
        served_world.hosts["alpha"].pk,
        reason="a copy of its disk",
        code="agent_copy",
        boot_id="boot-2",
        now=timezone.now(),
    )
    output = run_ok(gpupool, "host show alpha")
    for words in (
        "64 cores, 512 GiB",
        "550.54, CUDA up to 12.4",
        "bubblewrap, a user id per team, limits of cpu, memory",
        "loopback only",
        "PCIe 5.0 x16",
        "between GPUs, NVLink",
        "burn",
        "rack=r1",
        "full since",
        "Note: Workloads reach the metadata address",
        "(boot boot-2): a copy of its disk",
        "gpupool host join alpha",
    ):
        assert words in output, words
    assert "boot-1" not in output, "the boot id is shown to operators only"
    sign_in(served_world.operator)
    assert "boot-1" in run_ok(gpupool, "host show alpha")
    assert json.loads(run_ok(gpupool, "host show alpha --json"))["refused_agent"]["quarantined"] is True
    assert gpupool("host", "show", "nowhere").code == 4


def test_diagnostics_are_listed_with_their_checks_and_numbers(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    assert "No diagnostic yet" in run_ok(gpupool, "host diagnostics alpha")
    gpus, now = list(served_world.hosts["alpha"].gpus.order_by("index")), timezone.now()
    checks = [
        {"name": "memory", "passed": True, "numbers": {"tested_mib": 70_000}, "detail": ""},
        {
            "name": "bandwidth",
            "passed": False,
            "numbers": {"gigabytes_a_second": 11.25},
            "detail": "too slow",
        },
        {"name": "power", "passed": None, "numbers": {}, "detail": ""},
    ]
    for gpu, state, found, detail in (
        (gpus[0], "failed", checks, ""),
        (gpus[1], "failed", [], "no tool for it"),
    ):
        Diagnostic.objects.create(
            host=served_world.hosts["alpha"],
            gpu=gpu,
            why="periodic",
            state=state,
            tool="own",
            checks=found,
            detail=detail,
            created_at=now,
            ended_at=now,
        )
    output = run_ok(gpupool, "host diagnostics alpha")
    for words in (
        "tested mib 70000",
        "gigabytes a second 11.25",
        "failed too slow",
        "measured",
        "no tool for it",
    ):
        assert words in output, words
    assert "too slow" not in run_ok(gpupool, "host diagnostics alpha --gpu 1")


def test_all_hardware_events_are_listed(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    sign_in(served_world.vision.member)
    for number in range(23):
        HealthEvent.objects.create(
            host=served_world.hosts["alpha"],
            event_id=str(number),
            source="nvml",
            code=f"xid:{100 + number}",
            detail=f"row {number}, pid=4711, name=train",
            at=timezone.now(),
            received_at=timezone.now(),
        )
    output = run_ok(gpupool, "host events alpha")
    assert all(f"xid:{100 + number}" in output for number in range(23)) and "4711" not in output
    assert "xid:100" not in run_ok(gpupool, "host health alpha")
    sign_in(served_world.operator)
    assert all(
        "pid=4711, name=train" in run_ok(gpupool, f"host {part} alpha") for part in ("events", "health")
    )


def test_hosts_pools_teams_and_templates_are_previewed_removed_and_moved(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    assert "GPUs that leave the pool: 8." in run_ok(gpupool, "host remove beta --preview")
    assert Host.objects.filter(name="beta").exists()
    assert "beta is removed." in run_ok(gpupool, "host remove beta --why scrapped")
    preview = run_ok(gpupool, "host move gamma --pool vision-only --preview")
    assert "guaranteed" in preview and "Nothing is changed" in preview
    assert "gamma is moved to Vision only." in run_ok(gpupool, "host move gamma --pool vision-only")
    assert Host.objects.get(name="gamma").pool.slug == "vision-only"
    refused = gpupool("pool", "remove", "shared")
    assert refused.code != 0 and "Shared has hosts: alpha." in refused.err
    run_ok(gpupool, "host remove alpha")
    assert "Refused now" not in run_ok(gpupool, "pool remove shared --preview")
    assert json.loads(run_ok(gpupool, "pool remove shared --json"))["name"] == "Shared"
    assert "Members that leave it: robotics-1" in run_ok(gpupool, "team remove robotics --preview")
    assert "Robotics is removed." in run_ok(gpupool, "team remove robotics --why merged")
    Template.objects.create(
        slug="lab", name="Lab", kind="notebook", type="interactive", units=1, max_runtime_seconds=60
    )
    assert "Lab: Nobody can start work" in run_ok(gpupool, "template remove lab --preview")
    assert "Lab is deleted." in run_ok(gpupool, "template remove lab")
    assert not Template.objects.filter(slug="lab").exists()
