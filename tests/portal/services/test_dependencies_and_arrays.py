"""Jobs that wait for other jobs, and many jobs as one submission: from the verb over the engine to how they end."""

from __future__ import annotations

from typing import Any

import pytest

from portal import wording
from portal.errors import Conflict, Invalid, NotAllowed
from portal.services import workloads
from scheduler import engine, reconcile, releases, snapshot
from scheduler.core.reasons import Code
from scheduler.models import Command, Dependency, JobArray, Workload
from tests.world import H100, World

pytestmark = pytest.mark.django_db


def job(world: World, name: str = "train", **changes: Any) -> Workload:
    given: dict[str, Any] = {
        "actor": world.vision.member, "project": world.vision.project, "pool": world.shared, "name": name,
        "command": "true", "units": 1, "models": [H100], "max_runtime_seconds": 3600, "now": world.now,
    }  # fmt: skip
    return workloads.submit_job(**(given | changes))


def array(world: World, text: str, **changes: Any) -> JobArray:
    given: dict[str, Any] = {
        "actor": world.vision.member, "project": world.vision.project, "pool": world.shared, "name": "sweep",
        "command": "true", "units": 1, "models": [H100], "max_runtime_seconds": 3600, "now": world.now,
    }  # fmt: skip
    return workloads.submit_array(**(given | changes), array=text)


def end(workload: Workload, outcome: str = "finished") -> None:
    Workload.objects.filter(pk=workload.pk).update(state="ended", outcome=outcome)


def gate_of(world: World, workload: Workload) -> str:
    taken = snapshot.take([world.shared.pk], world.now)
    return next(queued.gate for queued in taken.queued if queued.id == workload.pk)


def cycle(world: World) -> None:
    releases.settle(world.now)
    engine.cycle("test", world.now)


# -- dependencies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "outcome", "starts"),
    [
        ("ok", "finished", True), ("ok", "failed", False), ("ok", "cancelled", False), ("any", "failed", True),
        ("any", "finished", True), ("not_ok", "failed", True), ("not_ok", "finished", False),
    ],
)  # fmt: skip
def test_it_starts_once_the_other_has_ended_as_it_must_or_never(
    world: World, condition: str, outcome: str, starts: bool
) -> None:
    first = job(world)
    second = job(world, "evaluate", after=[(condition, first)])
    cycle(world)
    second.refresh_from_db()
    assert (second.state, second.reason_code) == ("queued", Code.DEPENDENCY)
    assert (
        wording.reason(second.reason_code, second.reason_numbers, world.vision.member) == "It waits for train to end."
    )
    end(first, outcome)
    cycle(world)
    second.refresh_from_db()
    if starts:
        assert second.state == "placed"
    else:
        assert (second.state, second.outcome) == ("ended", Code.DEPENDENCY_NEVER_MET)
        assert second.outcome_numbers == {"workload": first.pk, "condition": condition, "outcome": outcome}


def test_what_can_never_run_ends_what_waits_for_it_in_turn(world: World) -> None:
    first = job(world)
    second = job(world, "second", after=[("ok", first)])
    third = job(world, "third", after=[("ok", second)])
    clean = job(world, "clean", after=[("not_ok", third)])
    workloads.cancel_workload(actor=world.vision.member, workload=first, now=world.now)
    releases.settle(world.now)
    states = dict(Workload.objects.values_list("name", "outcome"))
    assert states == {
        "train": "cancelled",
        "second": Code.DEPENDENCY_NEVER_MET,
        "third": Code.DEPENDENCY_NEVER_MET,
        "clean": "",
    }
    assert gate_of(world, clean) == ""
    assert releases.settle(world.now) == 0, "all is settled"


def test_it_waits_for_the_last_of_several(world: World) -> None:
    first, second = job(world), job(world, "other")
    last = job(world, "last", after=[("any", first), ("ok", second)])
    end(first, "failed")
    releases.settle(world.now)
    last.refresh_from_db()
    assert last.waits_for == [second.pk] and gate_of(world, last) == Code.DEPENDENCY
    end(second)
    releases.settle(world.now)
    assert gate_of(world, last) == ""


def test_what_can_not_be_waited_for_is_refused(world: World) -> None:
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


def test_no_workload_can_wait_for_a_later_one_so_there_are_no_circles(world: World) -> None:
    from django.db import IntegrityError, transaction

    first, second = job(world), job(world, "second")
    for earlier, later in ((first, second), (first, first)):
        with pytest.raises(IntegrityError), transaction.atomic():
            Dependency.objects.create(workload=earlier, on=later)


def test_waiting_for_others_costs_the_snapshot_no_query(world: World, django_assert_max_num_queries: Any) -> None:
    first = job(world)
    for number in range(5):
        job(world, f"n{number}", after=[("ok", first)])
    with django_assert_max_num_queries(snapshot.QUERIES):
        snapshot.take(None, world.now)


# -- arrays --------------------------------------------------------------------------------------------------------------


def test_an_array_is_many_jobs_of_which_so_many_run_at_once(world: World) -> None:
    made = array(world, "0-5%2")
    names = list(made.tasks.order_by("array_index").values_list("name", flat=True))
    assert names == [f"sweep[{n}]" for n in range(6)]
    cycle(world)
    assert list(made.tasks.filter(state="placed").values_list("array_index", flat=True).order_by("array_index")) == [
        0,
        1,
    ]
    assert set(made.tasks.filter(state="queued").values_list("reason_code", flat=True)) == {Code.ARRAY_LIMIT}
    end(made.tasks.get(array_index=1), "failed")
    cycle(world)
    assert set(made.tasks.filter(state="placed").values_list("array_index", flat=True)) == {0, 2}


def test_each_task_knows_its_number(world: World) -> None:
    array(world, "7,9")
    cycle(world)
    found = {
        reconcile._wanted(command, []).array_index
        for command in Command.objects.select_related("run__workload__pool", "run__workload__project__team")
    }
    assert found == {7, 9}


def test_an_array_is_cancelled_as_one(world: World) -> None:
    made = array(world, "0-9%4", models=[H100])
    cycle(world)
    with pytest.raises(NotAllowed):
        workloads.cancel_array(actor=world.language.lead, array=made, now=world.now)
    assert workloads.cancel_array(actor=world.vision.member, array=made, now=world.now) == 10
    assert made.tasks.filter(state="ended", outcome="cancelled").count() == 6
    assert made.tasks.filter(state="stopping").count() == 4
    with pytest.raises(Conflict):
        workloads.cancel_array(actor=world.vision.member, array=made, now=world.now)


def test_the_tasks_of_an_array_wait_for_other_work_together(world: World) -> None:
    first = job(world)
    made = array(world, "0-3", after=[("ok", first)])
    end(first, "failed")
    releases.settle(world.now)
    assert set(made.tasks.values_list("outcome", flat=True)) == {Code.DEPENDENCY_NEVER_MET}


@pytest.mark.parametrize(
    ("text", "indices", "at_once"),
    [
        ("0-3", [0, 1, 2, 3], None),
        ("1,3,5-9:2", [1, 3, 5, 7, 9], None),
        ("0-99%4", list(range(100)), 4),
        ("7", [7], None),
    ],
)
def test_indices_are_read_as_they_are_written(text: str, indices: list[int], at_once: int | None) -> None:
    from portal.validation import Checks

    assert workloads.indices_of(Checks(), text) == (indices, at_once)


@pytest.mark.parametrize(
    "text",
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
)
def test_other_indices_are_refused_by_name(world: World, text: Any) -> None:
    with pytest.raises(Invalid) as refused:
        workloads.submit_array(
            actor=world.vision.member, project=world.vision.project, pool=world.shared, name="sweep", command="true",
            units=1, now=world.now, array=text,
        )  # fmt: skip
    assert list(refused.value.fields) == ["array"]
    assert not Workload.objects.exists()
