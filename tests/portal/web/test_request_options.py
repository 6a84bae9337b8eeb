"""Test the pages of reservations, dependencies, arrays, preferences, GPU-hours and borrowed GPUs."""

from __future__ import annotations

import datetime as dt

import pytest
from django.urls import reverse
from django.utils import timezone

from portal.models import Submission
from scheduler import services
from scheduler.models import JobArray, Reservation, Series, Workload
from scheduler.sweeps import dependency_release
from telemetry.models import Price
from tests.portal.web.test_work_pages import ask_data
from tests.portal.web.work_samples import queue_job, reserve, run_job, signed_in
from tests.world import A100, H100, World

pytestmark = pytest.mark.django_db

DAY = dt.timedelta(days=1)


def next_monday() -> dt.datetime:
    today = timezone.localtime().replace(hour=9, minute=0, second=0, microsecond=0)
    return today + DAY * (7 - today.weekday())


def test_a_recurring_reservation_is_requested_shown_and_cancelled(world: World) -> None:
    client, start = signed_in(world.vision.member), next_monday()
    data = ask_data(
        world,
        kind="reservation",
        name="course",
        start=f"{start:%Y-%m-%dT%H:%M}",
        length="9",
        repeat="weekdays",
        until=f"{start + 11 * DAY:%Y-%m-%d}",
    )
    preview = client.post(reverse("ask-preview"), data).content.decode()
    assert (
        "10 occurrences, every weekday." in preview and "--on mon" in preview and "/api/v1/series/" in preview
    )
    assert client.post(reverse("ask"), data).status_code == 302
    whole = Series.objects.get()
    first = whole.occurrences.order_by("start")[0]
    page = client.get(reverse("reservation", args=[first.public_id])).content.decode()
    assert "It recurs" in page and "Every weekday 09:00 to 18:00" in page and "10 to come" in page
    cancel = reverse("series-cancel", args=[whole.public_id])
    assert "Cancel all of course?" in client.post(cancel).content.decode()
    assert client.post(cancel, {"confirmed": "1"}).status_code == 302
    assert set(Reservation.objects.values_list("state", flat=True)) == {"cancelled"}


def test_a_recurring_reservation_without_a_last_day_is_refused_at_that_field(world: World) -> None:
    start = next_monday()
    data = ask_data(world, kind="reservation", start=f"{start:%Y-%m-%dT%H:%M}", repeat="daily", until="")
    answer = signed_in(world.vision.member).post(reverse("ask"), data)
    assert answer.status_code == 400 and "until is not a date" in answer.content.decode()


def test_a_changed_window_is_confirmed_or_waits_for_approval(world: World) -> None:
    client = signed_in(world.vision.member)
    row = reserve(world, world.vision, "review", hours=24, length=4)
    address = reverse("reservation", args=[row.public_id])
    later = timezone.localtime(row.end) + dt.timedelta(hours=2)
    shown = {"start": f"{timezone.localtime(row.start):%Y-%m-%dT%H:%M}", "end": f"{later:%Y-%m-%dT%H:%M}"}
    assert client.post(address, shown).status_code == 302
    row.refresh_from_db()
    assert abs(row.end - later) < dt.timedelta(minutes=1)
    type(world.shared).objects.filter(pk=world.shared.pk).update(approval_above_gpus=0)
    shown["end"] = f"{later + dt.timedelta(hours=1):%Y-%m-%dT%H:%M}"
    assert client.post(address, shown).status_code == 302
    assert "waits for approval; until then the window stays as it is" in client.get(address).content.decode()
    submission = Submission.objects.get(kind="window_change")
    desk = signed_in(world.operator).get(reverse("submission", args=[submission.public_id])).content.decode()
    assert "Another window for review" in desk and "becomes" in desk


def test_an_array_is_one_row_one_card_and_one_page(world: World) -> None:
    client = signed_in(world.vision.member)
    data = ask_data(world, kind="job", name="sweep", command="true", array="0-9%4", second=A100)
    assert "job run" in client.post(reverse("ask-preview"), data).content.decode()
    assert client.post(reverse("ask"), data).status_code == 302
    whole = JobArray.objects.get()
    for page in ("jobs", "home"):
        text = client.get(reverse(page)).content.decode()
        assert text.count("10 tasks: 10 waiting") == 1 and "sweep[1]" not in text, page
    page = client.get(reverse("array", args=[whole.public_id])).content.decode()
    assert "sweep[9]" in page and "At most 4 at once" in page
    assert client.post(reverse("array-cancel", args=[whole.public_id]), {"confirmed": "1"}).status_code == 302
    assert "10 tasks: 10 cancelled" in client.get(reverse("array", args=[whole.public_id])).content.decode()


def test_a_job_shows_its_dependencies_and_its_dependents(world: World) -> None:
    client = signed_in(world.vision.member)
    first = queue_job(world, world.vision, "train")
    data = ask_data(
        world, kind="job", name="evaluate", command="true", after=str(first.public_id), after_how="ok"
    )
    assert "It waits for train to finish." in client.post(reverse("ask-preview"), data).content.decode()
    assert client.post(reverse("ask"), data).status_code == 302
    second = Workload.objects.get(name="evaluate")
    assert "train has finished" in client.get(reverse("job", args=[second.public_id])).content.decode()
    assert "Needed by" in client.get(reverse("job", args=[first.public_id])).content.decode()
    question = client.post(reverse("workload-cancel", args=[first.public_id])).content.decode()
    assert "1 job depends on it and ends with it." in question
    client.post(reverse("workload-cancel", args=[first.public_id]), {"confirmed": "1"})
    dependency_release.release_dependents(timezone.now())
    page = client.get(reverse("job", args=[second.public_id])).content.decode()
    assert "It was to run once train had finished" in page and "it ended as cancelled" in page


def test_the_row_of_an_array_sums_the_units_time_and_cost_of_its_tasks(world: World) -> None:
    client = signed_in(world.vision.member)
    client.post(reverse("ask"), ask_data(world, kind="job", name="sweep", command="true", array="0-3"))
    whole = JobArray.objects.get()
    now = timezone.now()
    Price.objects.create(
        model=H100,
        cost_per_gpu_hour="1.5",
        price_per_gpu_hour="2",
        valid_from=now - DAY,
        created_at=now - DAY,
    )
    ran = run_job(world, world.vision, "sweep[0]", host="alpha", gpus=[0, 1], array=whole, array_index=10)
    Workload.objects.filter(pk=ran.pk).update(started_at=now - dt.timedelta(hours=2))
    run_job(world, world.vision, "sweep[1]", host="alpha", gpus=[2], array=whole, array_index=11)
    page = client.get(reverse("jobs")).content.decode()
    assert page.count('data-label="by"') == 1
    assert "6 tasks: 2 running, 4 waiting" in page and "3 × H100 80GB" in page
    assert "began 2 h ago" in page
    assert "3.00" in page, "three GPUs for half an hour at a price of 2 per hour"
    home = client.get(reverse("home")).content.decode()
    assert "They hold 3 × H100 80GB" in home


def test_an_array_that_ended_today_is_one_row_of_the_home_page(world: World) -> None:
    client = signed_in(world.vision.member)
    client.post(reverse("ask"), ask_data(world, kind="job", name="sweep", command="true", array="0-9"))
    now = timezone.now()
    for place, task in enumerate(JobArray.objects.get().tasks.order_by("pk")):
        outcome = "failed" if place == 3 else "finished"
        Workload.objects.filter(pk=task.pk, state="queued").update(
            state="ended", ended_at=now, started_at=now - dt.timedelta(minutes=26), outcome=outcome
        )
    page = client.get(reverse("home")).content.decode()
    assert page.count("See its tasks") == 1 and "10 tasks: 9 finished, 1 failed" in page
    assert "took 26 min" in client.get(reverse("jobs")).content.decode()


@pytest.mark.long
def test_a_job_may_depend_on_every_task_of_an_array(world: World) -> None:
    client = signed_in(world.vision.member)
    client.post(reverse("ask"), ask_data(world, kind="job", name="sweep", command="true", array="0-3"))
    whole = JobArray.objects.get()
    assert "sweep, all tasks" in client.get(reverse("ask")).content.decode()
    data = ask_data(
        world, kind="job", name="collect", command="true", after=str(whole.public_id), after_how="ok"
    )
    preview = client.post(reverse("ask-preview"), data).content.decode()
    assert "It waits for every task of sweep to finish." in preview
    assert f"--after ok:{whole.public_id}" in preview and "&quot;array&quot;" in preview
    assert client.post(reverse("ask"), data).status_code == 302
    collect = Workload.objects.get(name="collect")
    assert collect.waits_for_arrays == [whole.pk]
    assert (
        "every task of sweep has finished"
        in client.get(reverse("job", args=[collect.public_id])).content.decode()
    )
    task = whole.tasks.order_by("array_index")[0]
    question = client.post(reverse("workload-cancel", args=[task.public_id])).content.decode()
    assert "1 job depends on it and ends with it." in question


@pytest.mark.long
def test_the_preview_warns_of_a_wanted_by_time_that_would_be_missed(world: World) -> None:
    soon = timezone.localtime() + dt.timedelta(hours=1)
    data = ask_data(
        world,
        kind="job",
        command="true",
        length="8",
        wanted_by=f"{soon:%Y-%m-%dT%H:%M}",
        prefer="rack=r1, disk=fast",
    )
    page = signed_in(world.vision.member).post(reverse("ask-preview"), data).content.decode()
    assert "it is expected to end at" in page and "--prefer rack=r1" in page
    wrong = ask_data(world, kind="job", command="true", prefer="fast")
    assert "is no label" in signed_in(world.vision.member).post(reverse("ask"), wrong).content.decode()


def test_a_team_sees_its_used_gpu_hours(world: World) -> None:
    services.change_quota(
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_slots=8 * 840,
        borrow_limit_slots=None,
        gpu_hours=500,
        period="week",
        now=world.now,
    )
    address = reverse("team", args=["vision"])
    client = signed_in(world.vision.lead)
    assert "0 of 500 used this week" in client.get(address).content.decode()
    form = client.get(reverse("quota-change", args=["vision"])).content.decode()
    assert "GPU-hours" in form and "New work only borrows until the period ends" in form


def test_work_on_borrowed_gpus_is_marked_on_every_page_that_shows_it(world: World) -> None:
    """Check the mark on the card, in the list and on the page of the work.

    The mark is shown only while the team holds more GPUs than its guarantee.
    """
    client = signed_in(world.robotics.member)
    job = run_job(world, world.robotics, "sweep", host="alpha", gpus=[0, 1])
    fixed = run_job(world, world.robotics, "lab", host="alpha", gpus=[6], kind="notebook")
    pages = [reverse("home"), reverse("jobs"), reverse("job", args=[job.public_id])]
    Workload.objects.filter(pk=fixed.pk).update(owner=world.robotics.lead)
    mark = "holds 3 × H100 80GB, 1 of them borrowed: it is guaranteed 2"
    for page in pages:
        assert mark in client.get(page).content.decode(), page
    assert "Borrowed GPUs may be reclaimed" in client.get(pages[0]).content.decode()
    notebook = client.get(reverse("notebook", args=[fixed.public_id])).content.decode()
    assert mark not in notebook, "work that is not preemptible cannot be reclaimed"
    Workload.objects.filter(pk=job.pk).update(preemptible=False)
    for page in pages:
        assert mark not in client.get(page).content.decode(), page
