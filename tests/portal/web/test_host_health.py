"""Test GPU health on the host page: diagnostics, missing GPUs, stray processes, maintenance."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta
from typing import Any

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.urls import reverse
from django.utils import timezone

from agent.gpu.simulated_models import simulated_gpus
from agent.protocol import CheckSeen, DiagnosticSeen, Health, StraySeen
from portal.models import Notification
from portal.notices import delivery, stray_processes
from portal.reads.fleet.host_details import host_units
from portal.services.fleet import hosts as host_verbs
from portal.web.fleet.hosts import _folded_slices
from portal.wording.notices import notice_texts
from scheduler.models import (
    BoundUnit,
    Diagnostic,
    Gpu,
    Host,
    MaintenanceWindow,
    Pool,
    Reservation,
    Run,
    Storage,
)
from scheduler.sweeps import reservation_windows
from scheduler.sync import gpu_diagnostics
from telemetry.health import missing_gpus, rules
from telemetry.ingest.agent_api import record_health_event, record_stray_processes
from telemetry.models import HealthEvent, HealthRule, ReadingFault, Sample
from tests.fakes import FakeAgent
from tests.portal.web.work_samples import run_job, signed_in
from tests.telemetry.rows import reservation
from tests.world import MIG, World, units_of

pytestmark = pytest.mark.django_db


def page(world: World, role: str = "operator", host: str = "alpha") -> str:
    return signed_in(world.people[role]).get(reverse("host", args=[host])).content.decode()


def submit_repair(world: World, verb: str, **more: object) -> str:
    client = signed_in(world.people["operator"])
    fields = {"verb": verb, **{name: str(value) for name, value in more.items()}}
    return client.post(reverse("host-repair", args=["alpha"]), fields, follow=True).content.decode()


def notices_for(world: World, role: str) -> list[str]:
    rows = Notification.objects.filter(user=world.people[role]).order_by("pk")
    return [notice_texts.notice_sentence(row.kind, row.numbers) for row in rows]


def test_an_operator_starts_a_diagnostic_and_sees_its_findings(world: World) -> None:
    Host.objects.filter(name="alpha").update(simulated=False)
    assert "GPU 2 is being diagnosed" in submit_repair(world, "diagnose", gpu=2)
    row = Diagnostic.objects.get()
    seen = DiagnosticSeen(
        str(row.public_id),
        "failed",
        "own",
        [CheckSeen("memory", False, {"wrong_words": 3})],
        "memory: 3 words",
    )
    gpu_diagnostics.store_diagnostics(row.host, [seen], world.now + timedelta(minutes=1))
    shown = page(world)
    assert "memory: 3 words" in shown and "wrong_words 3" in shown and "Out of service" in shown
    delivery.write_notices(world.now + timedelta(minutes=2))
    assert notices_for(world, "operator") == [
        "GPU 2 of alpha failed its diagnostic: memory: 3 words. It is out of service until you return it."
    ]
    assert notices_for(world, "member") == []
    notices = signed_in(world.people["operator"]).get(reverse("notifications")).content.decode()
    assert f'href="{reverse("host", args=["alpha"])}">GPU 2 of alpha failed its diagnostic' in notices
    assert "GPU 2 is back in service" in submit_repair(world, "return", gpu=2)
    assert Gpu.objects.get(host__name="alpha", index=2).repair_state == "well"


def test_a_missing_gpu_is_shown_and_notified_until_an_operator_forgets_it(
    world: World,
) -> None:
    gpu = Gpu.objects.get(host__name="alpha", index=2)
    at = world.now
    assert "Missing GPUs" not in page(world)
    facts = {"missing_since": at, "repair_state": "quarantined", "state_reason": "fell off the bus"}
    Gpu.objects.filter(pk=gpu.pk).update(**facts)
    assert "work still holds it" in page(world) and "is still held" in submit_repair(
        world, "forget", gpu=gpu.uuid
    )
    Gpu.objects.filter(pk=gpu.pk).update(retired_at=at)
    shown = page(world)
    assert (
        "Missing GPUs" in shown
        and gpu.uuid in shown
        and "fell off the bus" in shown
        and "Forget GPU 2" in shown
    )
    assert "Forget" not in page(world, "member")
    missing_gpus.record_missing_gpus(at + timedelta(seconds=5))
    rules.apply_rules_to_events(at + timedelta(seconds=5))
    delivery.write_notices(at + timedelta(seconds=6))
    (notice,) = notices_for(world, "operator")
    assert "gpu:missing" in notice and gpu.uuid in notice and notices_for(world, "member") == []
    assert "gpu is &#x27;GPU-x&#x27;" in submit_repair(world, "forget", gpu="GPU-x")
    assert "is removed from the list" in submit_repair(
        world, "forget", gpu=gpu.uuid, why="went to the vendor"
    )
    after = page(world)
    assert "Missing GPUs" not in after and "is gone for good" in after and "went to the vendor" in after


def test_a_simulated_diagnostic_is_marked_as_simulated(world: World) -> None:
    Host.objects.filter(name="alpha").update(simulated=True)
    submit_repair(world, "diagnose", gpu=0)
    row = Diagnostic.objects.get()
    seen = DiagnosticSeen(str(row.public_id), "passed", "simulated", [CheckSeen("memory", True)])
    gpu_diagnostics.store_diagnostics(row.host, [seen], world.now)
    shown = page(world)
    assert "simulated: nothing is measured" in shown and '<span class="tag">simulated</span>' in shown


def test_an_unknown_action_is_refused_with_what_is_allowed(world: World) -> None:
    page_text = submit_repair(world, "explode", gpu=1)
    assert (
        "allowed: diagnose, diagnose-all, return, out, forget, withdraw-geometry, cancel-window" in page_text
    )
    assert "gpu is &#x27;99&#x27;; allowed: 0" in submit_repair(world, "diagnose", gpu=99)


def test_operators_see_stray_processes_by_name_and_others_only_their_number(world: World) -> None:
    uuid = units_of(world.hosts["alpha"])[0].gpu.uuid
    record_stray_processes(
        world.hosts["alpha"].pk, [StraySeen(uuid, 4242, 7, "ada", "miner", 900)], world.now
    )
    shown = page(world)
    assert "miner" in shown and "pid 4242" in shown and "ada" in shown and "900 MiB" in shown
    other = page(world, "member")
    assert "miner" not in other and "ada" not in other and "1 now" in other


@pytest.mark.long
def test_only_operators_see_which_process_caused_a_quarantine(world: World) -> None:
    HealthRule.objects.filter(code__in=("stray:process", "xid:13")).update(action="quarantine_gpu", repeats=1)
    first, second = (unit.gpu.uuid for unit in units_of(world.hosts["alpha"])[:2])
    record_stray_processes(
        world.hosts["alpha"].pk, [StraySeen(first, 4242, 7, "ada", "miner", 900)], world.now
    )
    hit = "pid='4242', name=miner, Graphics Exception"
    record_health_event(
        world.hosts["alpha"].pk, Health("one", second, "xid", "xid:13", world.now.timestamp(), hit), world.now
    )
    assert rules.apply_rules_to_events(world.now) == 2
    assert "user ada" in page(world) and hit.replace("'", "&#x27;") in page(world)
    answers = [
        signed_in(world.people["member"]).get(f"/api/v1/hosts/alpha/{part}") for part in ("", "health/")
    ]
    assert "a process outside workloads uses it" in page(world, "member")
    for other in (page(world, "member"), *(answer.content.decode() for answer in answers)):
        assert not any(word in other for word in ("4242", "miner", "user ada"))


def new_notices_for_strays(world: World, second: int, *strays: StraySeen) -> list[str]:
    """Report these stray processes and return the notices that operators receive for them."""
    before, now = len(notices_for(world, "operator")), world.now + timedelta(seconds=second)
    record_stray_processes(world.hosts["alpha"].pk, strays, now)
    rules.apply_rules_to_events(now)
    delivery.write_notices(now + timedelta(seconds=5))
    return notices_for(world, "operator")[before:]


def test_operators_are_notified_once_of_each_stray_process_and_in_one_notice_of_several(
    world: World,
) -> None:
    first, second = (unit.gpu.uuid for unit in units_of(world.hosts["alpha"])[:2])
    one = StraySeen(first, 4242, 7, "ada", "miner", 900)
    (notice,) = new_notices_for_strays(world, 0, one)
    assert notice == (
        "alpha, GPU 0: miner (pid 4242, user ada, 900 MiB) belongs to no workload."
        " No action was taken: check the host."
    )
    assert new_notices_for_strays(world, 60) == [], "the process has ended"
    (notice,) = new_notices_for_strays(world, 180, replace(one, pid=4300, started=9))
    assert "pid 4300" in notice, "another process on the same GPU within the hour"
    assert new_notices_for_strays(world, 240, one, replace(one, gpu=second)) == [], (
        "the first process is back, on two GPUs"
    )
    several = [replace(one, pid=5000 + number) for number in range(7)]
    (said_together,) = new_notices_for_strays(world, 300, *several)
    assert (
        all(f"pid {5000 + number}" in said_together for number in range(5))
        and "; and 2 more. No action" in said_together
    )
    delivery.write_notices(world.now + timedelta(seconds=310))
    assert len(notices_for(world, "operator")) == 3 and notices_for(world, "member") == []


def test_the_notice_says_if_the_pool_ends_stray_processes(world: World) -> None:
    Pool.objects.update(stray_action="end")
    (notice,) = new_notices_for_strays(
        world, 0, StraySeen(units_of(world.hosts["alpha"])[0].gpu.uuid, 4242, 7)
    )
    assert notice.endswith(
        "The pool's policy ends such a process if it stays. The host's page shows the result."
    )


@pytest.mark.long
def test_many_stray_processes_are_summarised_every_ten_minutes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stray_processes, "MAX_STRAY_NOTICES_PER_HOUR", 2)
    uuid = units_of(world.hosts["alpha"])[0].gpu.uuid
    assert (world.now.minute, world.now.second) == (0, 0)
    coming = [
        new_notices_for_strays(world, 10 * number, StraySeen(uuid, 100 + number, 7))
        for number in range(stray_processes.MAX_STRAY_NOTICES_PER_HOUR + 3)
    ]
    assert [len(notice) for notice in coming] == [1] * stray_processes.MAX_STRAY_NOTICES_PER_HOUR + [0, 0, 0]
    (late,) = new_notices_for_strays(world, 600)
    assert all(f"pid {102 + number}" in late for number in range(3)) and "pid 101" not in late
    assert new_notices_for_strays(world, 610) == []
    (notice,) = new_notices_for_strays(world, 3600, StraySeen(uuid, 200, 7))
    assert "pid 200" in notice, "a new hour begins"


def test_a_stray_process_that_is_only_noted_causes_no_notice(world: World) -> None:
    HealthRule.objects.filter(code="stray:process").update(action="note")
    assert (
        new_notices_for_strays(world, 0, StraySeen(units_of(world.hosts["alpha"])[0].gpu.uuid, 4242, 7)) == []
    )


def test_an_ended_process_is_on_the_host_page_and_operators_see_its_owner(world: World) -> None:
    uuid = units_of(world.hosts["alpha"])[0].gpu.uuid
    who = "pid=4242, miner of user ada, 900 MiB, by TERM"
    event = Health("one", uuid, "agent", "stray:ended", world.now.timestamp(), who)
    record_health_event(world.hosts["alpha"].pk, event, world.now)
    rules.apply_rules_to_events(world.now)
    ended = "A process that belongs to no workload was ended, as the pool says"
    assert ended in page(world) and who in page(world)
    other = page(world, "member")
    assert ended in other and "4242" not in other and "user ada" not in other


def test_a_pool_with_warnings_notifies_the_owner_of_a_stray_process(world: World) -> None:
    name = world.vision.member.username
    uuid = units_of(world.hosts["alpha"])[0].gpu.uuid
    record_stray_processes(world.hosts["alpha"].pk, [StraySeen(uuid, 1, 7, name, "train", 900)], world.now)
    delivery.write_notices(world.now + timedelta(seconds=5))
    assert notices_for(world, "member") == []
    Pool.objects.update(stray_action="warn")
    record_stray_processes(world.hosts["alpha"].pk, [StraySeen(uuid, 2, 8, name, "train", 900)], world.now)
    delivery.write_notices(world.now + timedelta(seconds=10))
    (notice,) = [each for each in notices_for(world, "member") if "pid 2" in each]
    assert "Your process train (pid 2) uses GPU 0 of alpha outside the pool" in notice


def test_the_repair_policy_of_a_pool_is_set_on_its_page(world: World) -> None:
    fields = {
        "stray_action": "end",
        "diagnostic_tool": "own",
        "diagnostic_seconds": "300",
        "diagnose_every_hours": "24",
        "diagnose_after_quarantine": "on",
    }
    client, address = signed_in(world.people["operator"]), reverse("pool", args=["shared"])
    assert client.post(address, fields).status_code == 302
    pool = Pool.objects.get(slug="shared")
    assert (pool.stray_action, pool.diagnostic_tool, pool.diagnostic_seconds) == ("end", "own", 300)
    bad = client.post(address, fields | {"diagnostic_seconds": "1"})
    assert bad.status_code == 400 and "30 to 14,400 seconds" in bad.content.decode()
    assert signed_in(world.vision.member).post(address, fields).status_code == 403


def test_idle_free_slices_share_one_row(world: World) -> None:
    host = next(row for row in world.hosts.values() if row.gpus.filter(units__profile=MIG).exists())
    slices = [unit for unit in units_of(host, MIG) if unit.gpu_id == units_of(host, MIG)[0].gpu_id]
    cut, shown = slices[0].gpu, page(world, host=host.name)
    assert f"{MIG} × {len(slices)}" in shown and f"{len(slices)} free" in shown
    Sample.objects.create(unit=slices[1], ts=timezone.now(), memory_used_mib=512)
    Sample.objects.create(unit=slices[0], ts=timezone.now(), memory_used_mib=40, processes=0)
    rows = _folded_slices(host_units(world.people["operator"], host, timezone.now()))
    assert [row["count"] for row in rows if row["gpu"].pk == cut.pk] == [1, 1, len(slices) - 2], (
        "an active slice has its own row"
    )


def test_only_free_gpus_of_a_host_that_is_not_silent_can_be_diagnosed(
    world: World,
) -> None:
    run_job(world, world.vision, "busy", host="alpha", gpus=[0])
    shown = page(world)
    assert "Diagnose GPU 1" in shown and "Diagnose the free GPUs" in shown and "Diagnose GPU 0" not in shown
    Host.objects.filter(name="alpha").update(lease_state="silent")
    assert "Diagnose" not in page(world).partition("<h2>Health</h2>")[2]


def test_the_confirmation_pages_of_a_host_show_the_effect_on_gpus_and_work(
    world: World,
) -> None:
    run_job(world, world.vision, "storm", host="alpha", gpus=[0])
    client, host = signed_in(world.people["operator"]), world.hosts["alpha"]
    count = host.gpus.count()

    def shown(name: str) -> str:
        return " ".join(client.get(reverse(name, args=["alpha"])).content.decode().split())

    revoke = shown("host-revoke")
    assert (
        f"GPUs that leave the pool</dt> <dd>{count}</dd>" in revoke and "stops when its lease ends" in revoke
    )
    assert "Reservations that could not be served" in revoke
    assert "The last workload ends by" not in revoke, "all work stops with the lease"
    Host.objects.filter(pk=host.pk).update(lease_state="silent")
    off = shown("host-off")
    assert "counts as lost, starts elsewhere" in off and "GPUs that leave" not in off and "runs on" not in off
    Host.objects.filter(pk=host.pk).update(lease_state="alive", admin_state="cordoned")
    back = shown("host-return")
    assert f"GPUs that come back to the pool</dt> <dd>{count}</dd>" in back and "runs on" in back


def test_the_join_command_of_a_host_with_an_agent_stops_the_old_agent_first(world: World) -> None:
    client, address = signed_in(world.people["operator"]), reverse("host", args=["alpha"])
    assert (
        "sudo systemctl stop gpupool-agent &amp;&amp; printf %s "
        in client.post(address, {"verb": "token"}).content.decode()
    )
    Host.objects.filter(name="alpha").update(agent_version="")
    assert "systemctl stop" not in client.post(address, {"verb": "token"}).content.decode()


def test_a_pool_accepts_only_diagnostics_that_its_hosts_report(world: World) -> None:
    Host.objects.filter(name="alpha").update(hardware={"reported": {"diagnostics": ["burn"]}})
    client, address = signed_in(world.people["operator"]), reverse("pool", args=["shared"])
    assert "burn, on 1 of 3 hosts" in client.get(address).content.decode()
    fields = {"stray_action": "report", "diagnostic_seconds": "5 min", "diagnose_every_hours": "0"}
    assert client.post(address, fields | {"diagnostic_tool": "rm -rf /"}).status_code == 400
    assert client.post(address, fields | {"diagnostic_tool": "burn"}).status_code == 302
    assert Pool.objects.get(slug="shared").diagnostic_tool == "burn"
    api = "/api/v1/pools/shared/repair-policy/"
    refused = client.put(api, {"diagnostic_tool": "; reboot"}, content_type="application/json")
    assert refused.status_code == 400 and "allowed: auto, burn, dcgm, own" in refused.content.decode()
    row = gpu_diagnostics.request_diagnostic(
        Gpu.objects.get(host__name="alpha", index=0), why=Diagnostic.Why.OPERATOR, now=world.now
    )
    assert [
        each.tool for each in gpu_diagnostics.desired_diagnostics(row.host, Pool.objects.get(slug="shared"))
    ] == ["burn"]
    Host.objects.filter(name="alpha").update(hardware={})
    assert "burn, on 0 of 3 hosts" in client.get(address).content.decode(), "the choice is kept and marked"


def test_owners_are_notified_of_maintenance_and_of_its_cancellation(world: World) -> None:
    run_job(world, world.vision, "storm", host="alpha", gpus=[0])
    run_job(world, world.language, "elsewhere", host="beta", gpus=[0])
    start = world.now + timedelta(hours=1)
    fields: dict[str, Any] = {
        "actor": world.people["operator"],
        "host": world.hosts["alpha"],
        "now": world.now,
    }
    window = host_verbs.set_maintenance(**fields, start=start, end=start + timedelta(hours=2), why="new fans")
    delivery.write_notices(world.now + timedelta(seconds=5))
    (notice,) = notices_for(world, "member")
    assert (
        notice.startswith("alpha is in maintenance from")
        and "new fans. storm is moved off the host before that" in notice
    )
    assert not [each for each in notices_for(world, "other team") if "in maintenance" in each]
    host_verbs.cancel_maintenance(**fields | {"now": world.now + timedelta(minutes=1)}, window=window.pk)
    assert not MaintenanceWindow.objects.exists()
    delivery.write_notices(world.now + timedelta(minutes=2))
    assert "is cancelled: storm stays there" in notices_for(world, "member")[-1]


def test_a_reservation_leaves_a_cordoned_host_and_its_owner_is_notified(world: World) -> None:
    booked = reservation(
        world,
        world.vision,
        units_of(world.hosts["alpha"])[:2],
        world.now - timedelta(minutes=5),
        world.now + timedelta(hours=5),
    )
    Host.objects.filter(name="alpha").update(admin_state="cordoned")
    reservation_windows.sweep_reservations(world.now)
    assert not BoundUnit.objects.filter(
        reservation=booked, period__contains=world.now + timedelta(seconds=1)
    ).exists()
    row = Reservation.objects.get(pk=booked.pk)
    assert (row.moved_from, row.moved_at) == ("alpha", world.now)
    delivery.write_notices(world.now + timedelta(seconds=5))
    assert (
        "Reservation sprint leaves alpha, which can't be used at present." in notices_for(world, "member")[0]
    )


def test_the_rules_page_shows_defaults_of_other_products_with_their_source(world: World) -> None:
    shown = signed_in(world.people["operator"]).get(reverse("health-rules")).content.decode()
    assert "<summary>Others differ</summary>GPU taken out: NVIDIA&#x27;s Kubernetes device plugin" in shown
    codes = set(HealthRule.objects.values_list("code", flat=True))
    assert {"xid:154", "remap:failed", "throttle:thermal", "nvlink:down", "breaker:attempts"} <= codes


def test_an_event_is_shown_as_a_sentence_with_its_code(world: World) -> None:
    host = world.hosts["alpha"]
    HealthRule.objects.get_or_create(
        code="xid:79", defaults={"meaning": "GPU has fallen off the bus", "action": "cordon"}
    )
    meaning = HealthRule.objects.get(code="xid:79").meaning
    gpu = Gpu.objects.get(host=host, index=3)
    HealthEvent.objects.create(
        host=host, gpu=gpu, event_id="e1", source="xid", code="xid:79", at=world.now, received_at=world.now
    )
    rules.apply_rules_to_events(world.now + timedelta(seconds=1))
    shown = page(world)
    words = meaning[:1].upper() + meaning[1:]
    assert f'{words} <span class="faint">xid:79</span> on GPU 3' in " ".join(shown.split())
    assert Host.objects.get(pk=host.pk).state_reason == f"{meaning} (xid:79)"
    delivery.write_notices(world.now + timedelta(seconds=5))
    assert any(f"{meaning} (xid:79)" in notice for notice in notices_for(world, "operator"))


def test_the_page_shows_gpu_interconnects_and_the_address_of_workloads(world: World) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    models = ["H100-80GB"] * 8
    seen = {gpu.index: gpu for gpu in simulated_gpus("alpha", models, {})}
    uuids = {seen[gpu.index].uuid: gpu.uuid for gpu in agent.inventory.gpus}
    gpus = [
        replace(
            gpu,
            links={uuids[other]: way for other, way in seen[gpu.index].links.items()},
            pcie=seen[gpu.index].pcie,
            nvlinks=seen[gpu.index].nvlinks,
            numa_node=seen[gpu.index].numa_node,
        )
        for gpu in agent.inventory.gpus
    ]
    agent.inventory = replace(agent.inventory, gpus=gpus, address="10.0.0.7", simulated=True)
    agent.sync(world.now)
    shown = page(world)
    assert "NVLink: all" in shown and "10.0.0.7" in shown
    interconnects = (
        "18 NVLinks up, PCIe x16 of x16, up to generation 5<br>GPU 0 to 3: NUMA node 0<br>GPU 4 to 7:"
        " NUMA node 1"
    )
    assert f"<dt>Each GPU</dt> <dd> {interconnects} </dd>" in " ".join(shown.split()), (
        "common values are shown once"
    )


def test_the_attestation_form_refuses_a_host_that_is_alive(world: World) -> None:
    client, address = signed_in(world.people["operator"]), reverse("host-off", args=["alpha"])
    shown = client.get(address).content.decode()
    assert "alpha is not off: its agent reports" in shown and "Drain it instead" in shown
    assert "I have seen it powered off" not in shown
    Host.objects.filter(name="alpha").update(lease_state="silent")
    shown = client.get(address).content.decode()
    assert "I have seen it powered off" in shown and "Drain it instead" not in shown


def test_failed_hardware_is_listed_among_the_decisions_about_its_work(world: World) -> None:
    work = run_job(world, world.vision, "storm", host="alpha", gpus=[3])
    gpu = Gpu.objects.get(host=world.hosts["alpha"], index=3)
    HealthEvent.objects.create(
        host=gpu.host,
        gpu=gpu,
        event_id="e1",
        source="xid",
        code="xid:79",
        at=world.now,
        received_at=world.now,
    )
    rules.apply_rules_to_events(world.now + timedelta(seconds=1))
    meaning = HealthRule.objects.get(code="xid:79").meaning
    client = signed_in(world.vision.member)
    tab = client.get(reverse("job", args=[work.public_id]) + "?tab=decisions").content.decode()
    assert "Moved from its host" in tab and f"GPU 3 of alpha failed (XID 79, {meaning})" in tab
    (row,) = [
        each
        for each in client.get(f"/api/v1/workloads/{work.public_id}/why/").json()["decisions"]
        if each["kind"] == "moved"
    ]
    assert row["code"] == "gpu_error" and f"GPU 3 of alpha failed (XID 79, {meaning})" in row["sentence"]


def test_returning_a_host_shows_every_reason_and_the_fleet_shows_it_as_a_sentence(
    world: World,
) -> None:
    alpha = world.hosts["alpha"]
    host_verbs.cordon_host(actor=world.operator, host=alpha, why="looking at fans", now=world.now)
    gpu, now = units_of(alpha)[0].gpu, timezone.now()
    record_health_event(
        alpha.pk, Health("79", gpu.uuid, "nvml", "xid:79", now.timestamp(), "gone, pid=4711"), now
    )
    rules.apply_rules_to_events(now)
    text = signed_in(world.operator).get(reverse("host-return", args=["alpha"])).content.decode()
    assert "It was closed for: looking at fans; the GPU has fallen off the bus (xid:79): gone." in text
    fleet = signed_in(world.operator).get(reverse("fleet")).content.decode()
    assert "the GPU has fallen off the bus (xid:79) in the last 24 h" in fleet and "4711" not in fleet


def test_draining_a_host_shows_which_work_would_lose_its_checkpoint(world: World) -> None:
    run_job(world, world.vision, "fit", host="alpha", gpus=[0], preemptible=True)
    for name in ("alpha", "beta", "gamma"):
        homes = Storage.objects.create(key=name, listed_at=world.now)
        Host.objects.filter(pk=world.hosts[name].pk).update(storage=homes)
    text = signed_in(world.operator).get(reverse("host-drain", args=["alpha"])).content.decode()
    assert "in another home folder: it does not find the checkpoint and starts from the beginning" in text
    Host.objects.update(storage=Storage.objects.first())
    assert (
        "another home folder"
        not in signed_in(world.operator).get(reverse("host-drain", args=["alpha"])).content.decode()
    )


def test_the_attempts_of_a_job_show_where_its_checkpoint_was_not_found(world: World) -> None:
    work = run_job(world, world.vision, "fit", host="alpha", gpus=[0], preemptible=True)
    first = work.runs.get()
    Run.objects.filter(pk=first.pk).update(
        state="ended", outcome="checkpointed", checkpoint_at=first.running_at
    )
    first.allocations.update(period=DateTimeTZRange(first.placed_at, timezone.now()))
    Run.objects.create(
        workload=work,
        attempt=2,
        host=world.hosts["beta"],
        generation=99,
        state="running",
        placed_at=timezone.now(),
    )
    for name in ("alpha", "beta"):
        homes = Storage.objects.create(key=name, listed_at=world.now)
        Host.objects.filter(pk=world.hosts[name].pk).update(storage=homes)
    shown = (
        signed_in(world.vision.member)
        .get(reverse("job", args=[work.public_id]), {"tab": "attempts"})
        .content.decode()
    )
    assert (
        " ".join(shown.split()).count("Different home folder: this attempt did not find the checkpoint.") == 1
    )


def test_faulty_readings_are_shown_with_their_source_and_last_value(world: World) -> None:
    host, now = world.hosts["alpha"], timezone.now()
    assert "Faulty readings" not in page(world)
    given = (("power_w", "out_of_bounds", 3, 0, 99_999.0), ("energy_mj", "counter", 2, 0, None))
    for reading, kind, count, days, value in (*given, ("power_w", "out_of_bounds", 4, 6, -1.0)):
        last = now - timedelta(days=days)
        ReadingFault.objects.create(
            host=host,
            day=last.astimezone(UTC).date(),
            source="nvml",
            reading=reading,
            kind=kind,
            count=count,
            last_at=last,
            last_value=value,
        )
    shown = page(world, "member")
    assert "Faulty readings" in shown and "impossible value, stored as unknown" in shown
    assert ">99,999 W<" in shown and ">7<" in shown and ">NVML<" in shown
    answer = signed_in(world.people["member"]).get("/api/v1/hosts/alpha/health/").json()
    faults = {fault["reading"]: fault for fault in answer["reading_faults"]}
    assert (faults["power_w"]["count"], faults["power_w"]["last_value"]) == (7, 99_999.0)
    assert (faults["energy_mj"]["kind"], faults["energy_mj"]["last_value"]) == ("counter", None)


def test_faulty_readings_of_more_than_a_week_ago_are_not_shown(world: World) -> None:
    last = timezone.now() - timedelta(days=8)
    ReadingFault.objects.create(
        host=world.hosts["alpha"],
        day=last.astimezone(UTC).date(),
        source="nvml",
        reading="power_w",
        kind="out_of_bounds",
        count=1,
        last_at=last,
    )
    assert "Faulty readings" not in page(world)
