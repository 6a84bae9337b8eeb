"""Test dependencies between jobs, and job arrays: from submission through the engine to their end."""

from __future__ import annotations

from typing import Any

import pytest

from portal.errors import Invalid, NotAllowed
from portal.reads.work import job_arrays
from portal.services.work import launch, request_checks, workload_changes, workload_preview
from portal.wording import reason_texts
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import engine, snapshot, snapshot_rows
from scheduler.models import Command, Dependency, JobArray, Workload
from scheduler.sweeps import dependency_release
from scheduler.sync import desired_state
from tests.portal.rejections import rejected
from tests.seeds import first_cases
from tests.world import H100, World

pytestmark = pytest.mark.django_db


def job(world: World, name: str = "train", **changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": name,
        "command": "true",
        "units": 1,
        "models": [H100],
        "max_runtime_seconds": 3600,
        "now": world.now,
    }
    return launch.submit_job(**(fields | changes))


def array(world: World, text: str, **changes: Any) -> JobArray:
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "sweep",
        "command": "true",
        "units": 1,
        "models": [H100],
        "max_runtime_seconds": 3600,
        "now": world.now,
    }
    return launch.submit_array(**(fields | changes), array=text)


def end(workload: Workload, outcome: str = "finished") -> None:
    Workload.objects.filter(pk=workload.pk).update(state="ended", outcome=outcome)


def gate_reason_of(world: World, workload: Workload) -> str:
    taken = snapshot.take_snapshot([world.shared.pk], world.now)
    return next(queued.gate for queued in taken.queued if queued.id == workload.pk)


def cycle(world: World) -> None:
    dependency_release.release_dependents(world.now)
    engine.run_cycle("test", world.now)


# -- dependencies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "outcome", "starts"),
    [
        ("ok", "finished", True),
        ("ok", "failed", False),
        ("any", "failed", True),
        ("not_ok", "finished", False),
        pytest.param("ok", "cancelled", False, marks=pytest.mark.long),
        pytest.param("any", "finished", True, marks=pytest.mark.long),
        pytest.param("not_ok", "failed", True, marks=pytest.mark.long),
    ],
)
def test_a_job_starts_only_if_its_dependency_ended_as_required(
    world: World, condition: str, outcome: str, starts: bool
) -> None:
    first = job(world)
    second = job(world, "evaluate", after=[(condition, first)])
    cycle(world)
    second.refresh_from_db()
    assert (second.state, second.reason_code) == ("queued", ReasonCode.DEPENDENCY)
    how = {"ok": "finish", "any": "end", "not_ok": "end without finishing"}[condition]
    assert reason_texts.waiting_sentence(second, world.vision.member) == f"It waits for train to {how}."
    end(first, outcome)
    cycle(world)
    second.refresh_from_db()
    if starts:
        assert second.state == "placed"
    else:
        assert (second.state, second.outcome) == ("ended", ReasonCode.DEPENDENCY_NEVER_MET)
        assert second.outcome_numbers == {"workload": first.pk, "condition": condition, "outcome": outcome}


def test_a_job_that_can_never_run_ends_its_dependents_in_turn(world: World) -> None:
    first = job(world)
    second = job(world, "second", after=[("ok", first)])
    third = job(world, "third", after=[("ok", second)])
    clean = job(world, "clean", after=[("not_ok", third)])
    workload_changes.cancel_workload(actor=world.vision.member, workload=first, now=world.now)
    dependency_release.release_dependents(world.now)
    states = dict(Workload.objects.values_list("name", "outcome"))
    assert states == {
        "train": "cancelled",
        "second": ReasonCode.DEPENDENCY_NEVER_MET,
        "third": ReasonCode.DEPENDENCY_NEVER_MET,
        "clean": "",
    }
    assert gate_reason_of(world, clean) == ""
    assert dependency_release.release_dependents(world.now) == 0, "no dependency is open"


def test_a_job_waits_for_the_last_of_several_dependencies(world: World) -> None:
    first, second = job(world), job(world, "other")
    last = job(world, "last", after=[("any", first), ("ok", second)])
    end(first, "failed")
    dependency_release.release_dependents(world.now)
    last.refresh_from_db()
    assert last.waits_for == [second.pk] and gate_reason_of(world, last) == ReasonCode.DEPENDENCY
    end(second)
    dependency_release.release_dependents(world.now)
    assert gate_reason_of(world, last) == ""


def test_an_invalid_dependency_is_refused(world: World) -> None:
    failed = job(world)
    end(failed, "failed")
    failed.refresh_from_db()
    with pytest.raises(Invalid) as refused:
        job(world, "evaluate", after=[("ok", failed)])
    assert "train, which ended as failed" in refused.value.fields["after"]
    with pytest.raises(Invalid):
        job(world, "evaluate", after=[("maybe", failed)])
    with pytest.raises(Invalid, match="at most 20"):
        job(world, "evaluate", after=[("any", job(world, f"n{n}")) for n in range(21)])
    assert job(world, "clean", after=[("not_ok", failed)]).waits_for == []


def test_no_workload_can_depend_on_a_later_one_so_there_are_no_cycles(world: World) -> None:
    from django.db import IntegrityError, transaction

    first, second = job(world), job(world, "second")
    for earlier, later in ((first, second), (first, first)):
        with pytest.raises(IntegrityError), transaction.atomic():
            Dependency.objects.create(workload=earlier, on=later)


def test_dependencies_add_no_query_to_the_snapshot(world: World, django_assert_max_num_queries: Any) -> None:
    first = job(world)
    for number in range(5):
        job(world, f"n{number}", after=[("ok", first)])
    with django_assert_max_num_queries(snapshot_rows.SNAPSHOT_QUERIES):
        snapshot.take_snapshot(None, world.now)


# -- arrays --------------------------------------------------------------------------------------------------


def test_an_array_runs_as_many_tasks_at_once_as_its_limit_allows(world: World) -> None:
    job_array = array(world, "0-5%2")
    names = list(job_array.tasks.order_by("array_index").values_list("name", flat=True))
    assert names == [f"sweep[{n}]" for n in range(6)]
    cycle(world)
    assert list(
        job_array.tasks.filter(state="placed").values_list("array_index", flat=True).order_by("array_index")
    ) == [
        0,
        1,
    ]
    assert set(job_array.tasks.filter(state="queued").values_list("reason_code", flat=True)) == {
        ReasonCode.ARRAY_LIMIT
    }
    end(job_array.tasks.get(array_index=1), "failed")
    cycle(world)
    assert set(job_array.tasks.filter(state="placed").values_list("array_index", flat=True)) == {0, 2}


def test_each_task_gets_its_index_in_its_environment(world: World) -> None:
    array(world, "7,9")
    cycle(world)
    found = {
        desired_state._run_wanted(command, [], None, world.shared).array_index
        for command in Command.objects.select_related("run__workload__pool", "run__workload__project__team")
    }
    assert found == {7, 9}


def test_an_array_is_represented_by_a_task_that_has_not_ended(world: World) -> None:
    job_array = array(world, "0-2%1")
    assert [row.array_index for row in job_arrays.first_open_task_only(job_array.tasks.all())] == [0]
    end(job_array.tasks.get(array_index=0), "finished")
    assert [row.array_index for row in job_arrays.first_open_task_only(job_array.tasks.all())] == [1]


def test_an_array_is_cancelled_as_a_whole(world: World) -> None:
    job_array = array(world, "0-9%4", models=[H100])
    cycle(world)
    with pytest.raises(NotAllowed):
        workload_changes.cancel_array(actor=world.language.lead, array=job_array, now=world.now)
    assert workload_changes.cancel_array(actor=world.vision.member, array=job_array, now=world.now) == 10
    assert job_array.tasks.filter(state="ended", outcome="cancelled").count() == 6
    assert job_array.tasks.filter(state="stopping").count() == 4
    with rejected():
        workload_changes.cancel_array(actor=world.vision.member, array=job_array, now=world.now)


def test_the_tasks_of_an_array_share_their_dependencies(world: World) -> None:
    first = job(world)
    job_array = array(world, "0-3", after=[("ok", first)])
    end(first, "failed")
    dependency_release.release_dependents(world.now)
    assert set(job_array.tasks.values_list("outcome", flat=True)) == {ReasonCode.DEPENDENCY_NEVER_MET}


@pytest.mark.parametrize(
    ("text", "indices", "at_once"),
    [
        ("0-3", [0, 1, 2, 3], None),
        ("1,3,5-9:2", [1, 3, 5, 7, 9], None),
        ("0-99%4", list(range(100)), 4),
        ("7", [7], None),
    ],
)
def test_valid_index_expressions_are_parsed(text: str, indices: list[int], at_once: int | None) -> None:
    from portal.input_checks import InputChecks

    assert request_checks.parse_array_indices(InputChecks(), text) == (indices, at_once)


@pytest.mark.parametrize(
    "text",
    first_cases(
        5,
        [
            "",
            "a",
            "0-",
            "3-1",
            "0-1000",
            "0-5%0",
            "0-5%",
            "1;2",
            "-1",
            "0-9:0",
            "2000000",
            7,
            None,
            "\u0663",
            "0-" + "9" * 300,
        ],
    ),
)
def test_invalid_index_expressions_are_refused_by_name(world: World, text: Any) -> None:
    with pytest.raises(Invalid) as refused:
        launch.submit_array(
            actor=world.vision.member,
            project=world.vision.project,
            pool=world.shared,
            name="sweep",
            command="true",
            units=1,
            now=world.now,
            array=text,
        )
    assert list(refused.value.fields) == ["array"]
    assert not Workload.objects.exists()


# -- dependencies on whole arrays ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "outcomes", "starts"),
    [
        ("ok", ("finished", "failed"), False),
        ("any", ("failed", "cancelled"), True),
        ("not_ok", ("finished", "failed"), True),
        pytest.param("ok", ("finished", "finished"), True, marks=pytest.mark.long),
        pytest.param("not_ok", ("failed", "failed"), True, marks=pytest.mark.long),
        pytest.param("not_ok", ("finished", "finished"), False, marks=pytest.mark.long),
    ],
)
def test_a_job_starts_only_if_the_tasks_of_an_array_ended_as_required(
    world: World, condition: str, outcomes: tuple[str, str], starts: bool
) -> None:
    sweep = array(world, "0-1", preemptible=False)
    waits = job(world, "collect", after=[(condition, sweep)])
    cycle(world)
    waits.refresh_from_db()
    assert (waits.state, waits.reason_code) == ("queued", "dependency")
    how = {"ok": "finish", "any": "end", "not_ok": "end, at least one of them without finishing"}[condition]
    assert (
        reason_texts.waiting_sentence(waits, world.vision.member)
        == f"It waits for every task of sweep to {how}."
    )
    assert (
        reason_texts.waiting_sentence(waits, world.language.member)
        == f"It waits for every task of an array to {how}."
    )
    first, second = sweep.tasks.order_by("array_index")
    end(first, outcomes[0])
    if outcomes[0] == "finished":
        cycle(world)
        waits.refresh_from_db()
        assert waits.state == "queued", "one task has not ended"
    end(second, outcomes[1])
    cycle(world)
    waits.refresh_from_db()
    assert (waits.state == "placed") is starts
    if not starts:
        assert (waits.state, waits.outcome) == ("ended", "dependency_never_met")
        assert waits.outcome_numbers["array"] == sweep.pk
        words = reason_texts.reason_sentence(waits.outcome, waits.outcome_numbers, world.vision.member)
        assert words.startswith("It was to run once every task of sweep had")


def test_a_job_that_needs_all_tasks_finished_ends_with_the_first_task_that_did_not_finish(
    world: World,
) -> None:
    sweep = array(world, "0-9%1")
    waits, patient = (
        job(world, "collect", after=[("ok", sweep)]),
        job(world, "clean", after=[("not_ok", sweep)]),
    )
    end(sweep.tasks.get(array_index=0), "failed")
    cycle(world)
    waits.refresh_from_db()
    patient.refresh_from_db()
    assert waits.outcome_numbers == {"array": sweep.pk, "condition": "ok", "outcome": "failed"}
    assert reason_texts.reason_sentence(waits.outcome, waits.outcome_numbers, world.vision.member) == (
        "It was to run once every task of sweep had finished; that can't happen any more,"
        " one ended as failed."
    )
    assert (patient.state, patient.waits_for_arrays) == ("queued", [sweep.pk])


def test_a_job_may_depend_on_jobs_and_arrays_and_an_array_on_another(world: World) -> None:
    sweep, other = array(world, "0-2"), job(world, "other")
    both = job(world, "both", after=[("ok", sweep), ("any", other)])
    after_all = array(world, "5-6", name="second", after=[("any", sweep)])
    cycle(world)
    both.refresh_from_db()
    assert reason_texts.reason_sentence(both.reason_code, both.reason_numbers, world.vision.member) == (
        "It waits for other to end, and for 1 other."
    )
    Workload.objects.filter(array=sweep).update(state="ended", outcome="finished")
    cycle(world)
    both.refresh_from_db()
    assert (both.waits_for, both.waits_for_arrays) == ([other.pk], [])
    assert not after_all.tasks.exclude(waits_for_arrays=[]).exists()
    assert {gate_reason_of(world, task) for task in after_all.tasks.filter(state="queued")} <= {""}
    end(other, "failed")
    cycle(world)
    both.refresh_from_db()
    assert both.state == "placed"


def test_an_array_that_did_not_end_as_required_is_refused_as_a_dependency(world: World) -> None:
    sweep = array(world, "0-1")
    end(sweep.tasks.get(array_index=0), "failed")
    with pytest.raises(Invalid, match="after names sweep, in which some tasks did not end as required"):
        job(world, "collect", after=[("ok", sweep)])
    Workload.objects.filter(array=sweep, state="queued").update(state="ended", outcome="finished")
    workload = job(world, "clean", after=[("not_ok", sweep)])
    assert workload.waits_for_arrays == [] and Dependency.objects.get().settled_at == world.now


def test_dependencies_on_arrays_cost_a_cycle_a_fixed_number_of_queries(
    world: World, django_assert_max_num_queries: Any
) -> None:
    for number in range(6):
        job(world, f"after {number}", after=[("any", array(world, "0-4", name=f"sweep {number}"))])
    dependency_release.release_dependents(world.now)
    with django_assert_max_num_queries(4):
        dependency_release.release_dependents(world.now)


# -- limits on waiting work ----------------------------------------------------------------------------------


def test_a_submission_above_the_limit_of_waiting_work_is_refused_with_the_numbers(world: World) -> None:
    world.shared.most_waiting_per_user, world.shared.most_waiting_per_team = 3, 5
    world.shared.save()
    for number in range(3):
        job(world, f"job {number}")
    with rejected() as refused:
        job(world, "one too many")
    assert refused.value.code == ReasonCode.TOO_MANY_WAITING
    assert refused.value.numbers == {"of": "person", "waiting": 3, "more": 1, "limit": 3}
    assert refusal_sentence(refused.value) == (
        "Its owner has 3 notebooks and jobs waiting in this pool;"
        " 1 more would exceed the limit of 3 for one person. "
        "Submit it when some have started or are cancelled."
    )
    with rejected("for one person"):
        launch.launch_notebook(
            actor=world.vision.member, project=world.vision.project, pool=world.shared, now=world.now
        )
    preview = workload_preview.preview_workload(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        now=world.now,
        name="x",
        command="x",
    )
    assert (preview["code"], preview["starts_now"]) == ("too_many_waiting", False)

    job(world, "of the lead", actor=world.vision.lead)
    job(world, "another of the lead", actor=world.vision.lead)
    with rejected("Its team has 5 notebooks and jobs waiting"):
        job(world, "one too many of the team", actor=world.vision.lead)
    elsewhere = job(world, "in its own pool", pool=world.static, models=[])
    assert elsewhere.state == "queued", "the limit applies to each pool"
    end(Workload.objects.get(name="job 0"), "cancelled")
    assert job(world, "instead").state == "queued"


def test_an_array_is_counted_and_accepted_as_a_whole_or_refused(world: World) -> None:
    world.shared.most_waiting_per_user = 10
    world.shared.save()
    array(world, "0-5%1")
    with rejected("has 6 notebooks and jobs waiting in this pool; 5 more would"):
        array(world, "0-4", name="second")
    assert JobArray.objects.count() == 1 and Workload.objects.count() == 6
    assert array(world, "0-3", name="second").tasks.count() == 4


def test_requeued_work_is_not_refused(world: World) -> None:
    running = job(world, "runs")
    cycle(world)
    world.shared.most_waiting_per_user = 1
    world.shared.save()
    job(world, "waits", units=8, hosts=2)
    running.refresh_from_db()
    assert running.state == "placed"
    Workload.objects.filter(pk=running.pk).update(state="queued")  # as after an eviction
    with rejected("has 2 notebooks and jobs waiting"):
        job(world, "new")
