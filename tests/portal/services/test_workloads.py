"""Test launching, cancelling, extending and opening workloads: permissions, refusals and audit records."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent, EntryCode, Template, WorkspaceOrigin
from portal.services.work import launch, workload_changes, workload_preview, workspaces
from portal.wording.refusal_texts import refusal_sentence
from scheduler import services as scheduling
from scheduler.cycle import engine
from scheduler.models import Allocation, Workload
from tests.fakes import FakeAgent
from tests.portal.rejections import rejected
from tests.seeds import first_cases
from tests.world import H100, MIG, World

pytestmark = pytest.mark.django_db


def job(world: World, **changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "train",
        "command": "python train.py",
        "units": 2,
        "models": [H100],
        "now": world.now,
        "max_runtime_seconds": 3600,
    }
    return launch.submit_job(**(fields | changes))


def notebook(world: World, **changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "now": world.now,
    }
    return launch.launch_notebook(**(fields | changes))


def test_a_job_waits_in_the_queue_of_its_pool_and_its_author_is_recorded(world: World) -> None:
    workload = job(world, priority="high", environment={"SEED": "7"})
    assert (workload.state, workload.units, workload.models_wanted, workload.priority) == (
        "queued",
        2,
        [H100],
        2,
    )
    assert workload.owner == world.vision.member
    event = AuditEvent.objects.get()
    assert (event.verb, event.actor, event.team, event.via) == (
        "submit_job",
        world.vision.member,
        world.vision.team,
        "web",
    )
    assert event.after is not None and event.after["units"] == 2


def test_a_notebook_takes_missing_fields_from_its_template(world: World) -> None:
    template = Template.objects.create(
        slug="small", name="Small", kind="notebook", type="interactive", units=1, max_runtime_seconds=7200
    )
    workload = notebook(world, template=template)
    assert (workload.kind, workload.units, workload.max_runtime_seconds, workload.type) == (
        "notebook",
        1,
        7200,
        "interactive",
    )
    assert not workload.preemptible
    assert WorkspaceOrigin.objects.get(workload=workload).label


@pytest.mark.parametrize("role", ["other team", "stranger", "operator", "finance", "auditor"])
def test_only_members_of_its_team_start_work_in_a_project(world: World, role: str) -> None:
    with pytest.raises(NotAllowed):
        job(world, actor=world.people[role])
    assert not Workload.objects.exists()
    assert not AuditEvent.objects.exists()


def test_a_member_who_is_also_an_auditor_changes_nothing(world: World) -> None:
    type(world.vision.member).objects.filter(pk=world.vision.member.pk).update(auditor=True)
    world.vision.member.refresh_from_db()
    with pytest.raises(NotAllowed):
        job(world)


@pytest.mark.parametrize(
    ("field", "value"),
    first_cases(
        12,
        [
            ("name", ""),
            ("name", "x" * 81),
            ("name", "a\0b"),
            ("name", "abc\u202edef"),
            ("name", "a\ud800"),
            ("name", 7),
            ("command", ""),
            ("command", "x" * 20_001),
            ("units", 0),
            ("units", -1),
            ("units", 10**9),
            ("units", True),
            ("units", 1.5),
            ("units", 23),
            ("hosts", 0),
            ("models", ["B200"]),
            ("models", "H100"),
            ("profile", "3g.20gb"),
            ("min_memory_mib", 10**7),
            ("min_memory_mib", 100_000),
            ("type", "gaming"),
            ("priority", "critical"),
            ("priority", 3),
            ("priority", "\ud800"),
            ("preemptible", "yes"),
            ("max_runtime_seconds", 0),
            ("max_runtime_seconds", 10**12),
            ("most_retries", 11),
            ("labels_required", {"rack": "\0"}),
            ("labels_required", {f"l{n}": "x" for n in range(21)}),
            ("environment", {"CUDA_VISIBLE_DEVICES": "0"}),
            ("environment", {"GPUPOOL_RUN": "0"}),
            ("environment", {"A B": "0"}),
            ("environment", {"A": "\0"}),
            ("environment", {"A": "x" * 5000}),
        ],
    ),
)
def test_an_invalid_field_is_refused_by_name_and_nothing_is_written(
    world: World, field: str, value: Any
) -> None:
    with pytest.raises(Invalid) as refused:
        job(world, **{"models": [H100]} | {field: value})
    assert list(refused.value.fields) == [field]
    assert field in refused.value.fields[field]
    assert "allowed" in refused.value.fields[field] or "up to" in refused.value.fields[field]
    assert not Workload.objects.exists()
    assert not AuditEvent.objects.exists()


def test_all_invalid_fields_are_reported_together(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        job(world, name="", units=0, type="gaming")
    assert set(refused.value.fields) == {"name", "units", "type"}


def test_the_static_pool_of_another_team_is_refused(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        job(world, actor=world.language.member, project=world.language.project, pool=world.static, models=[])
    assert "another team" in refused.value.fields["pool"]


def test_slices_can_be_requested_where_the_pool_has_them(world: World) -> None:
    assert job(world, models=[], profile=MIG, units=3).profile == MIG


def test_the_owner_a_lead_and_an_operator_may_cancel_and_others_may_not(world: World) -> None:
    for role in ("member", "lead", "operator"):
        workload = job(world)
        workload_changes.cancel_workload(
            actor=world.people[role], workload=workload, now=world.now, why="not needed"
        )
        workload.refresh_from_db()
        assert (workload.state, workload.outcome) == ("ended", "cancelled")
    workload = job(world)
    for role in ("team mate", "other team", "stranger", "finance", "auditor"):
        with pytest.raises(NotAllowed):
            workload_changes.cancel_workload(actor=world.people[role], workload=workload, now=world.now)
    assert AuditEvent.objects.filter(verb="cancel_workload", why="not needed").count() == 3


def test_ended_work_cannot_be_cancelled_again(world: World) -> None:
    workload = job(world)
    workload_changes.cancel_workload(actor=world.vision.member, workload=workload, now=world.now)
    with rejected("already ended"):
        workload_changes.cancel_workload(actor=world.vision.member, workload=workload, now=world.now)


def test_an_extension_stays_within_the_longest_runtime_of_the_pool(world: World) -> None:
    workload = job(world)
    workload_changes.extend_workload(
        actor=world.vision.member, workload=workload, seconds=3600, now=world.now
    )
    workload.refresh_from_db()
    assert workload.max_runtime_seconds == 7200
    with pytest.raises(Invalid, match="allowed"):
        workload_changes.extend_workload(
            actor=world.vision.member, workload=workload, seconds=10**8, now=world.now
        )


def test_the_second_of_two_concurrent_extensions_is_refused_as_too_long(world: World) -> None:
    workload = job(world)
    stale_row = Workload.objects.get(pk=workload.pk)
    remaining_seconds = world.shared.longest_runtime_seconds - workload.max_runtime_seconds
    workload_changes.extend_workload(
        actor=world.vision.member, workload=workload, seconds=remaining_seconds, now=world.now
    )
    with rejected("was extended just now"):
        workload_changes.extend_workload(
            actor=world.vision.lead, workload=stale_row, seconds=remaining_seconds, now=world.now
        )
    workload.refresh_from_db()
    assert workload.max_runtime_seconds == world.shared.longest_runtime_seconds


def test_a_notebook_can_be_kept_from_idle_stop_and_a_job_only_if_its_stop_is_planned(world: World) -> None:
    with rejected("No stop of"):
        workload_changes.keep_workload(
            actor=world.vision.member, workload=job(world), seconds=3600, now=world.now
        )
    workload = notebook(world)
    workload_changes.keep_workload(actor=world.vision.member, workload=workload, seconds=3600, now=world.now)
    workload.refresh_from_db()
    assert workload.keep_until == world.now + timedelta(hours=1)


def test_a_relaunch_copies_every_field_except_the_changed_ones(world: World) -> None:
    workload = job(world, nvlink=True)
    relaunched = launch.relaunch_workload(
        actor=world.vision.members[1], workload=workload, now=world.now, units=1
    )
    assert (relaunched.command, relaunched.nvlink, relaunched.units) == (workload.command, True, 1)
    assert relaunched.owner == world.vision.members[1]


def test_values_of_environment_variables_are_copied_for_their_owner_only(world: World) -> None:
    workload, mate = job(world, environment={"TOKEN": "s3cret"}), world.vision.members[1]
    relaunched = launch.relaunch_workload(actor=world.vision.member, workload=workload, now=world.now)
    assert relaunched.environment == {"TOKEN": "s3cret"}
    with pytest.raises(Invalid) as refused:
        launch.relaunch_workload(actor=mate, workload=workload, now=world.now)
    assert "TOKEN" in refusal_sentence(refused.value) and "s3cret" not in refusal_sentence(refused.value)
    own = launch.relaunch_workload(
        actor=mate, workload=workload, now=world.now, environment={"TOKEN": "mine"}
    )
    assert own.environment == {"TOKEN": "mine"}


def test_only_its_owner_opens_a_running_notebook_and_the_code_expires_after_a_minute(world: World) -> None:
    workload = notebook(world)
    with rejected("while it runs"):
        workspaces.open_workspace(
            actor=world.vision.member, workload=workload, session_key="s", now=world.now
        )
    Workload.objects.filter(pk=workload.pk, state="queued").update(state="running")
    workload.refresh_from_db()
    for role in ("team mate", "lead", "operator", "stranger"):
        with pytest.raises(NotAllowed):
            workspaces.open_workspace(
                actor=world.people[role], workload=workload, session_key="s", now=world.now
            )
    url = workspaces.open_workspace(
        actor=world.vision.member, workload=workload, session_key="s", now=world.now
    )
    assert settings.GPUPOOL_NOTEBOOK_DOMAIN in url
    code = EntryCode.objects.get()
    assert code.expires_at == world.now + timedelta(minutes=1)
    assert code.code_hash not in url
    assert code.session_key_hash != "s"


def test_a_preview_returns_the_outcome_and_writes_nothing(world: World) -> None:
    preview = workload_preview.preview_workload(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        now=world.now,
        name="x",
        command="x",
        units=2,
        models=[H100],
        max_runtime_seconds=3600,
    )
    assert (preview["starts_now"], preview["code"], preview["gpus"]) == (True, "free_within_guarantee", 2)
    assert preview["price_per_hour"] is None
    assert not Workload.objects.exists()


def test_an_invalid_value_is_quoted_safely_in_the_error(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        job(world, name="x" * 10_000 + "\ud800")
    refused.value.fields["name"].encode()
    str(refused.value.values).encode()


def test_a_notebook_is_not_extended_into_units_promised_to_a_reservation(world: World) -> None:
    hosts = [FakeAgent.of(world.hosts[name]) for name in ("alpha", "beta")]
    workload = notebook(world, units=2, models=[H100], max_runtime_seconds=3600)
    engine.run_cycle("test", world.now)
    for agent in hosts * 2:
        agent.sync(world.now)
    held = Allocation.objects.filter(workload=workload).count()
    assert held == 2
    start = world.now + timedelta(hours=2)
    booked, answer = scheduling.confirm_reservation(
        owner=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        name="All",
        start=start,
        units=8,
        hosts=2,
        end=start + timedelta(hours=2),
        now=world.now,
        may_exceed_guarantee=True,
        models_wanted=[H100],
    )
    assert booked is not None, answer
    workload.refresh_from_db()
    extend: dict[str, Any] = {"actor": world.vision.member, "workload": workload}
    with rejected() as refused:
        workload_changes.extend_workload(**extend, seconds=3 * 3600, now=world.now)
    assert (refused.value.code, refused.value.field) == ("more_time_blocked", "seconds")
    assert "1 reservation needs them from" in refusal_sentence(refused.value)
    assert "It can be extended until" in refusal_sentence(refused.value)
    assert refused.value.numbers["latest"] == int(start.timestamp())
    workload.refresh_from_db()
    assert workload.max_runtime_seconds == 3600
    workload_changes.extend_workload(**extend, seconds=3600, now=world.now)
    with rejected("can't be extended at all"):
        workload_changes.extend_workload(**extend, seconds=3600, now=world.now)
