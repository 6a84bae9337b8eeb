"""Test comparisons of two workloads: which is first by which rule, expected starts, and fair shares."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import time_machine
from django.core.cache import cache
from django.db import connection
from django.http import QueryDict
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal.reads.work import wait_explanation
from portal.wording import expected_start_texts, queue_order_texts
from scheduler import services
from scheduler.core.explain.start_ranges import MIN_OUTCOMES, EstimateAccuracy
from scheduler.core.queue.turn import TurnCriterion
from scheduler.core.what_if.comparison import ComparisonBasis
from scheduler.cycle import engine
from scheduler.models import StartEstimate, Workload
from tests.portal.web.work_samples import signed_in
from tests.scheduler.test_job_lifecycle import job
from tests.world import H100, TeamOfWorld, World

pytestmark = pytest.mark.django_db
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture(autouse=True)
def ten_minutes_later(world: World) -> Iterator[None]:
    """Set the clock to ten minutes after the submissions."""
    with time_machine.travel(world.now + 10 * MINUTE, tick=False):
        yield


def fill_pool(world: World) -> list[Workload]:
    """Fill every H100 of the pool with work of vision: its guarantee and borrowed GPUs."""
    runs = [
        job(world, world.vision, 8, world.now, name="first"),
        job(world, world.vision, 8, world.now, name="second"),
    ]
    engine.run_cycle("test", world.now)
    Workload.objects.update(predicted_seconds=4 * 3600)
    return [row for row in runs if Workload.objects.get(pk=row.pk).state != "queued"]


def waiting_job(
    world: World, team: TeamOfWorld, name: str, units: int = 8, minutes: int = 1, **also: object
) -> Workload:
    at = world.now + minutes * MINUTE
    workload = job(world, team, units, at, name=name, **also)
    engine.run_cycle("test", at)
    workload.refresh_from_db()
    assert workload.state == "queued"
    return workload


def comparison_page(world: World, mine: Workload, theirs: Workload, user: object = None) -> str:
    client = signed_in(user or world.vision.member)  # type: ignore[arg-type]
    answer = client.get(reverse("why-them", args=[mine.public_id, theirs.public_id]))
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_every_ordering_rule_has_its_sentence() -> None:
    assert {part.value for part in TurnCriterion} == set(queue_order_texts.EARLIER_BECAUSE)
    assert {part.value for part in TurnCriterion} | {"there_first", "fit", "turned_away"} == set(
        queue_order_texts.QUEUE_ORDER_RULES
    )
    assert set(ComparisonBasis) - {ComparisonBasis.ORDER} < set(queue_order_texts.QUEUE_ORDER_RULES)
    for rule in queue_order_texts.QUEUE_ORDER_RULES:
        assert queue_order_texts.queue_order_sentence(rule, {}).endswith(".")  # also without its numbers


def test_running_work_was_placed_first(world: World) -> None:
    runs = fill_pool(world)
    mine = waiting_job(world, world.vision, "mine")
    text = comparison_page(world, mine, runs[0])
    assert "It has had its GPUs since" in text and "Even if" in text or "would start now" in text


def test_a_higher_priority_in_the_same_team_goes_first(world: World) -> None:
    fill_pool(world)
    mine = waiting_job(world, world.vision, "mine", preemptible=False)
    urgent = waiting_job(world, world.vision, "urgent", priority=2, preemptible=False, minutes=2)
    assert "its priority is high, yours normal" in comparison_page(world, mine, urgent)
    detail = signed_in(world.vision.member).get(reverse("why", args=[mine.public_id])).context["detail"]
    assert [(row["name"], row["because"]) for row in detail["ahead"]] == [
        ("urgent", "has a higher priority in your team")
    ]
    assert detail["ahead"][0]["why_url"] == reverse("why-them", args=[mine.public_id, urgent.public_id])


def test_the_comparison_shows_the_numbers_of_the_queue_position(world: World) -> None:
    fill_pool(world)
    mine = waiting_job(world, world.vision, "mine", preemptible=False)
    quick = waiting_job(world, world.vision, "quick", preemptible=False, minutes=2, max_runtime_seconds=600)
    text = comparison_page(world, mine, quick)
    assert "10 times the expected run time" in text and "expected to run 10 minutes" in text


def test_the_comparison_says_if_the_other_was_submitted_earlier_or_is_shorter(
    world: World,
) -> None:
    fill_pool(world)
    long = {"preemptible": False, "max_runtime_seconds": 4 * 3600}
    waiting_job(world, world.vision, "earlier", **long)
    waiting_job(world, world.vision, "both", minutes=2, preemptible=False, max_runtime_seconds=600)
    mine = waiting_job(world, world.vision, "mine", minutes=3, **long)
    waiting_job(world, world.vision, "quick", minutes=4, preemptible=False, max_runtime_seconds=600)
    detail = signed_in(world.vision.member).get(reverse("why", args=[mine.public_id])).context["detail"]
    assert {row["name"]: row["because"] for row in detail["ahead"]} == {
        "earlier": "was submitted earlier",
        "both": "was submitted earlier, and is shorter",
        "quick": "is shorter, though submitted later",
    }


def test_work_that_the_user_may_not_see_is_not_found(world: World) -> None:
    fill_pool(world)
    mine = waiting_job(world, world.vision, "mine")
    foreign = waiting_job(world, world.language, "secret-name", units=16, minutes=2)
    member = signed_in(world.vision.member)
    for pair in ((mine, foreign), (foreign, mine)):
        assert member.get(reverse("why-them", args=[row.public_id for row in pair])).status_code == 404
    for address in (reverse("why", args=[mine.public_id]), reverse("queue")):
        assert "secret-name" not in member.get(address).content.decode()
    assert "secret-name" in comparison_page(world, mine, foreign, world.operator)


def test_hidden_workloads_ahead_are_counted(world: World) -> None:
    fill_pool(world)
    foreign = waiting_job(world, world.language, "secret-name", units=4, preemptible=False)
    Workload.objects.filter(pk=foreign.pk).update(submitted_at=world.now - 30 * HOUR)
    mine = waiting_job(world, world.vision, "mine", minutes=2)
    found = wait_explanation.explain_wait(mine, world.vision.member, world.now + 3 * MINUTE)
    everybody = wait_explanation.explain_wait(mine, world.operator, world.now + 3 * MINUTE)
    assert len(everybody.ahead) == found.ahead_more + len(found.ahead)
    assert "secret-name" not in [row.workload.name for row in found.ahead]


def test_ended_work_cannot_be_compared(world: World) -> None:
    runs = fill_pool(world)
    mine = waiting_job(world, world.vision, "mine")
    services.cancel_workload(mine, now=world.now + 2 * MINUTE)
    assert "mine has ended (cancelled), so it is no longer in the queue." in comparison_page(
        world, mine, runs[0]
    )
    assert f"{runs[0].name} has its GPUs: no other work is ahead of it." in comparison_page(
        world, runs[0], mine
    )
    again = waiting_job(world, world.vision, "again")
    assert "mine has ended (cancelled), so it is no longer ahead of again." in comparison_page(
        world, again, mine
    )


def add_estimate_history(world: World, waiting: Workload, count: int, ranged: bool = True) -> None:
    """Record `count` estimates of one hour for waits that lasted one and a half hours."""
    for number in range(count):
        workload = job(world, world.vision, 1, world.now)
        over = world.now - number * MINUTE
        StartEstimate.objects.create(
            workload=workload,
            pool=world.shared,
            attempt=0,
            told_at=over - 1.5 * HOUR,
            expected_start=over - 0.5 * HOUR,
            latest=over + MINUTE * (1 if number % 5 else -1) if ranged else None,
            over_at=over,
            started=True,
        )
        Workload.objects.filter(pk=workload.pk).update(state="ended", ended_at=over)


def test_an_expected_start_is_a_range_with_its_past_accuracy(world: World) -> None:
    fill_pool(world)
    mine = waiting_job(world, world.vision, "mine", preemptible=False)
    member = signed_in(world.vision.member)
    address = reverse("why", args=[mine.public_id])
    bare = member.get(address).content.decode()
    assert "so there is no range yet" in bare and "likely between" not in bare
    add_estimate_history(world, mine, MIN_OUTCOMES)
    job_page = reverse("job", args=[mine.public_id])
    pages = {
        found: member.get(found).content.decode()
        for found in (address, job_page, reverse("home"), reverse("queue"))
    }
    for found in (address, job_page, reverse("home")):
        assert "likely between" in pages[found], found
    for found in (address, reverse("queue"), job_page):
        text = pages[found]
        assert (
            f"Of the last {MIN_OUTCOMES} workloads with a range in this pool, 80 % started by its upper end"
            in text
        )
        assert (
            "half of the expected starts were off by more than 30 minutes" in text and "no guarantee" in text
        )


def test_the_accuracy_text_does_not_overstate_few_samples() -> None:
    assert "no range yet" in expected_start_texts.forecast_accuracy_text(EstimateAccuracy())
    one = expected_start_texts.forecast_accuracy_text(
        EstimateAccuracy(errors=(1.0,), started_count=1, median_error=600)
    )
    assert (
        "Only 1 workload waited" in one
        and "its expected start was off by 10 min" in one
        and "half" not in one
    )
    few = EstimateAccuracy(errors=(1.0,) * 3, started_count=3, median_error=600)
    assert "Only 3 workloads waited" in expected_start_texts.forecast_accuracy_text(
        few
    ) and "%" not in expected_start_texts.forecast_accuracy_text(few)
    unproven = EstimateAccuracy(
        errors=(1.0,) * 30, started_count=30, median_error=600, with_range=2, started_in_range_count=2
    )
    assert "Too few of them had a range" in expected_start_texts.forecast_accuracy_text(unproven)


def test_users_of_a_pool_may_read_its_fair_shares(world: World) -> None:
    fill_pool(world)
    page = signed_in(world.vision.member).get(reverse("fairness", args=[world.shared.slug]))
    rows = {row["team"].slug: row for row in page.context["rows"]}
    assert rows["vision"]["mine"] and not rows["language"]["mine"]
    assert (rows["vision"]["held"], rows["vision"]["borrowed"]) == ("16", "8")


@pytest.mark.long  # test_work_queries.py counts the queries of the first page in the short part
def test_the_pages_make_the_same_number_of_queries_however_much_waits(world: World) -> None:
    runs = fill_pool(world)
    mine = waiting_job(world, world.vision, "mine", preemptible=False)
    addresses = [
        reverse("why", args=[mine.public_id]),
        reverse("why-them", args=[mine.public_id, runs[0].public_id]),
        reverse("fairness", args=[world.shared.slug]),
    ]

    def query_counts() -> list[int]:
        counts = []
        for address in addresses:
            cache.clear()  # an older answer could expire between the two requests
            client = signed_in(world.vision.member)
            client.get(address)
            with CaptureQueriesContext(connection) as captured:
                assert client.get(address).status_code == 200
            counts.append(len(captured))
        return counts

    waiting_job(world, world.vision, "one", priority=2, preemptible=False, minutes=2)
    few = query_counts()
    for number in range(5):
        waiting_job(world, world.vision, f"more-{number}", priority=2, preemptible=False, minutes=3 + number)
    assert all(after <= before for after, before in zip(query_counts(), few, strict=True))


def test_operators_read_why_these_gpus_were_chosen(world: World) -> None:
    runs = fill_pool(world)
    address = reverse("job", args=[runs[0].public_id]) + "?tab=decisions"
    assert "Why these GPUs" in signed_in(world.operator).get(address).content.decode()
    assert "Why these GPUs" not in signed_in(world.vision.member).get(address).content.decode()
    assert expected_start_texts.placement_score_terms({"waste_before": 1}) == []


def test_a_notebook_is_offered_no_priority_that_it_cannot_have(world: World) -> None:
    fill_pool(world)
    waiting = waiting_job(
        world, world.vision, "desk", units=4, preemptible=False, kind="notebook", type="interactive"
    )
    for way in wait_explanation.faster_requests(waiting, world.now + 2 * MINUTE):
        assert not {"priority", "preemptible"} & set(way.changed)


@pytest.mark.long
def test_a_faster_variant_links_to_a_filled_in_form(world: World) -> None:
    fill_pool(world)
    mine = waiting_job(world, world.vision, "mine", preemptible=False, max_runtime_seconds=8 * 3600)
    form = signed_in(world.vision.member).get(
        reverse("ask")
        + f"?kind=job&from={mine.public_id}&units=2&hosts=2&seconds=7200&priority=high&preemptible=1"
    )
    initial = form.context["form"].initial
    assert (initial["hosts"], initial["priority"], initial["preemptible"]) == (2, "high", True)
    assert (int(initial["length"]), initial["length_unit"]) == (2, "hours")


@pytest.mark.long
def test_a_preview_offers_a_faster_variant_and_a_button_fills_it_in(world: World) -> None:
    fill_pool(world)
    client = signed_in(world.vision.member)
    data = {
        "kind": "job",
        "project": str(world.vision.project.pk),
        "target": f"shared|{H100}|",
        "count": "8",
        "length": "8",
        "length_unit": "hours",
        "command": "true",
        "type": "training",
        "priority": "normal",
    }
    response = client.post(reverse("ask-preview"), data)
    assert response.context["preview"]["sooner"], response.content.decode()
    for way in response.context["preview"]["sooner"]:
        wanted = QueryDict(way["value"])
        form = client.post(reverse("ask"), data | {"use_way": way["value"]}).context["form"]
        assert form["target"].value() == wanted["target"]
        assert wanted["units"] in (form["count"].value(), form["units_other"].value())
        assert bool(form["preemptible"].value()) == ("preemptible" in wanted)
    assert not Workload.objects.filter(
        command="true"
    ).exists()  # a button fills in the form but does not submit it
    assert (
        client.post(reverse("ask"), data | {"use_way": "units=-1&target=%00&seconds=9e9"}).status_code == 200
    )
