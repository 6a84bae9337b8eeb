"""Test pages for users of GPUs: who may read them, what they show, and that input is never lost."""

from __future__ import annotations

import datetime as dt
import re
import uuid

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.models import AuditEvent, Submission, Template
from portal.reads.work import workload_details
from portal.web.components.state_display import STATE_DISPLAY
from portal.web.work import workload_card, workload_text
from portal.wording import state_labels
from scheduler.models import Allocation, Host, Quota, Reservation, Run, Workload
from scheduler.state.states import ReservationState, WorkloadState
from telemetry.health.rules import apply_rules_to_events
from telemetry.models import HealthEvent, Price
from tests.portal.web.work_samples import MADE, make_waiting, queue_job, reserve, run_job, signed_in, start
from tests.seeds import first_cases
from tests.telemetry.rows import store_rollup
from tests.world import H100, World

pytestmark = pytest.mark.django_db

PAGES = [
    "home",
    "ask",
    "calendar",
    "notebooks",
    "notebook-launch",
    "jobs",
    "job-submit",
    "queue",
    "search",
]


@pytest.mark.long  # in the short part, test_web_role_matrix.py requests the pages as one role
@pytest.mark.parametrize("page", PAGES)
def test_every_role_may_read_the_page(world: World, page: str) -> None:
    for role, user in world.people.items():
        assert signed_in(user).get(reverse(page)).status_code == 200, role


@pytest.mark.parametrize("page", PAGES)
def test_a_visitor_is_sent_to_sign_in_and_back_again(world: World, page: str) -> None:
    answer = Client().get(reverse(page))
    assert answer.status_code == 302
    assert "next=" in answer["Location"]


def test_a_page_part_after_the_session_ended_reloads_the_whole_page(world: World) -> None:
    answer = Client().get(reverse("home"), {"part": "live"}, headers={"HX-Request": "true"})
    assert (answer.status_code, answer["HX-Refresh"]) == (204, "true")


def test_home_shows_own_work_and_nothing_of_other_teams(world: World) -> None:
    run_job(world, world.vision, "vessel-seg", host="alpha", gpus=[0, 1])
    run_job(world, world.language, "secret-llm", host="beta", gpus=[0])
    page = signed_in(world.vision.member).get(reverse("home")).content.decode()
    assert "vessel-seg" in page
    assert "alpha, GPU 0–1" in page
    assert "secret-llm" not in page


def test_home_without_work_suggests_the_next_step(world: World) -> None:
    page = signed_in(world.vision.member).get(reverse("home")).content.decode()
    assert "You have no running workloads yet" in page
    assert reverse("notebook-launch") in page
    assert "You are not in a team" in signed_in(world.stranger).get(reverse("home")).content.decode()


def test_a_waiting_card_shows_its_position_and_reason(world: World) -> None:
    make_waiting(world, world.vision, "mri-foundation")
    page = signed_in(world.vision.member).get(reverse("home")).content.decode()
    assert re.search(r"Position</span><b>2 <small>of 1", page)
    assert "H100" in page
    assert "Why them, not me?" in page


def test_a_refresh_without_changes_updates_only_the_timestamp(world: World) -> None:
    client = signed_in(world.vision.member)
    page = client.get(reverse("queue")).content.decode()
    again = re.search(r'hx-get="([^"]+)"', page)
    assert again is not None
    answer = client.get(again.group(1).replace("&amp;", "&"))
    assert answer["HX-Reswap"] == "none"
    make_waiting(world, world.vision, "mri-foundation")
    changed = client.get(again.group(1).replace("&amp;", "&"))
    assert "HX-Reswap" not in changed
    assert "mri-foundation" in changed.content.decode()


def test_unknown_utilisation_is_shown_as_unknown_and_never_as_zero(world: World) -> None:
    run_job(world, world.vision, "quiet", host="alpha", gpus=[0])
    page = signed_in(world.vision.member).get(reverse("home")).content.decode()
    assert "Utilisation over the last two hours, unknown" in page
    assert "0 %" not in page


# -- notebooks -----------------------------------------------------------------------------------------------


@pytest.fixture
def template(db: None) -> Template:
    return Template.objects.create(
        slug="one",
        name="Notebook, 1 GPU",
        kind="notebook",
        type="interactive",
        units=1,
        max_runtime_seconds=4 * 3600,
    )


@pytest.mark.long
def test_a_notebook_is_launched_from_a_template_in_two_clicks(world: World, template: Template) -> None:
    client = signed_in(world.vision.member)
    form = client.get(reverse("notebook-launch"))
    assert form.context["form"].initial["template"] == "one"
    answer = client.post(
        reverse("notebook-launch"),
        {"template": "one", "project": world.vision.project.pk, "pool": "shared", "hours": "2"},
    )
    notebook = Workload.objects.get()
    assert answer["Location"] == f"{reverse('notebook', args=[notebook.public_id])}?open=1"
    assert (notebook.kind, notebook.units, notebook.max_runtime_seconds) == ("notebook", 1, 7200)
    progress = client.get(answer["Location"]).content.decode()
    assert "JupyterLab opens here as soon as it responds" in progress
    assert "Queued" in progress


def test_an_unknown_template_keeps_the_other_fields(world: World, template: Template) -> None:
    fields = {
        "template": "nonsense",
        "project": world.vision.project.pk,
        "pool": "shared",
        "hours": "2",
        "name": "mine",
    }
    answer = signed_in(world.vision.member).post(reverse("notebook-launch"), fields)
    assert answer.status_code == 400
    assert 'value="mine"' in answer.content.decode()
    assert not Workload.objects.exists()


def test_only_its_owner_opens_a_notebook_and_one_that_is_not_ready_shows_why(world: World) -> None:
    notebook = queue_job(world, world.vision, "lab", kind="notebook")
    address = reverse("notebook-open", args=[notebook.public_id])
    mate = signed_in(world.vision.members[1]).post(address)
    assert mate.status_code == 403
    mine = signed_in(world.vision.member).post(address, follow=True)
    assert "can be opened while it runs" in mine.content.decode()


def test_a_ready_notebook_opens_on_its_own_origin(world: World) -> None:
    notebook = run_job(world, world.vision, "lab", kind="notebook", host="alpha", gpus=[0])
    client = signed_in(world.vision.member)
    page = client.get(reverse("notebook", args=[notebook.public_id]), {"open": "1"}).content.decode()
    assert "data-opens-itself" in page
    answer = client.post(reverse("notebook-open", args=[notebook.public_id]))
    assert answer.status_code == 303
    assert "/.gpupool/enter?code=" in answer["Location"]


# -- workloads -----------------------------------------------------------------------------------------------


def test_stopping_asks_for_confirmation_first(world: World) -> None:
    job = queue_job(world, world.vision, "train")
    client = signed_in(world.vision.member)
    address = reverse("workload-cancel", args=[job.public_id])
    question = client.post(address)
    assert "Stop train?" in question.content.decode()
    job.refresh_from_db()
    assert job.state == WorkloadState.QUEUED
    assert client.post(address, {"confirmed": "1"}).status_code == 302
    job.refresh_from_db()
    assert job.state == WorkloadState.ENDED
    assert AuditEvent.objects.filter(verb="cancel_workload").count() == 1


def test_a_workload_of_another_team_is_not_found(world: World) -> None:
    job = queue_job(world, world.vision, "train")
    other = signed_in(world.language.member)
    for page in ("job", "why", "job-log"):
        assert other.get(reverse(page, args=[job.public_id])).status_code == 404
    for verb in ("cancel", "extend", "keep"):
        assert other.post(reverse(f"workload-{verb}", args=[job.public_id])).status_code == 404
    assert other.get(reverse("job", args=[uuid.uuid4()])).status_code == 404


def test_a_team_mate_sees_a_job_but_may_not_stop_it(world: World) -> None:
    job = queue_job(world, world.vision, "train")
    mate = signed_in(world.vision.members[1])
    assert mate.get(reverse("job", args=[job.public_id])).status_code == 200
    refused = mate.post(reverse("workload-cancel", args=[job.public_id]), {"confirmed": "1"})
    assert refused.status_code == 403
    assert "Only its owner" in refused.content.decode()


@pytest.mark.parametrize(
    "hours",
    [
        "0",
        "1e3",
        "٣",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("", "-1", "99999999999", "one")),
    ],
)
def test_an_invalid_number_of_hours_is_named_and_changes_nothing(world: World, hours: str) -> None:
    job = run_job(world, world.vision, "train", host="alpha", gpus=[0])
    client = signed_in(world.vision.member)
    answer = client.post(reverse("workload-extend", args=[job.public_id]), {"hours": hours}, follow=True)
    assert answer.status_code == 200
    assert "allowed: a whole number from 1" in answer.content.decode()
    before = job.max_runtime_seconds
    job.refresh_from_db()
    assert job.max_runtime_seconds == before


# The other tests of tabs open the tabs that are only in the long part of this test.
@pytest.mark.parametrize(
    "tab",
    [
        "decisions",
        "nonsense",
        *(pytest.param(tab, marks=pytest.mark.long) for tab in ("log", "attempts", "use", "cost")),
    ],
)
def test_every_tab_of_a_job_exists_before_and_while_it_runs(world: World, tab: str) -> None:
    client = signed_in(world.vision.member)
    for job in (
        queue_job(world, world.vision, "waits"),
        run_job(world, world.vision, "runs", host="alpha", gpus=[0]),
    ):
        assert client.get(reverse("job", args=[job.public_id]), {"tab": tab}).status_code == 200


def test_a_log_request_returns_only_new_lines(world: World) -> None:
    from scheduler.runs import logs

    job = run_job(world, world.vision, "train", host="alpha", gpus=[0])
    run = job.runs.get()
    logs.append_log(run.public_id, 0, "step 1 <b>\n")
    client = signed_in(world.vision.member)
    page = client.get(reverse("job", args=[job.public_id])).content.decode()
    assert "step 1 &lt;b&gt;" in page
    logs.append_log(run.public_id, 11, "step 2\n")
    more = client.get(
        reverse("job-log", args=[job.public_id]), {"run": run.public_id, "offset": 11}
    ).content.decode()
    assert "step 2" in more
    assert "step 1" not in more
    assert 'hx-swap-oob="beforeend:#log"' in more
    whole = client.get(reverse("job-log", args=[job.public_id]), {"download": 1})
    assert b"".join(whole) == b"step 1 <b>\nstep 2\n"  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "goes_on"), [(None, True), (5, True), (60, False)])
def test_a_page_waits_a_short_time_for_the_last_log_lines(
    world: World, seconds: int | None, goes_on: bool
) -> None:
    job = run_job(world, world.vision, "train", host="alpha", gpus=[0])
    if seconds is not None:
        ended = timezone.now() - dt.timedelta(seconds=seconds)
        Run.objects.filter(workload=job, state="running").update(state="ended", ended_at=ended)
    page = signed_in(world.vision.member).get(reverse("job", args=[job.public_id])).content.decode()
    assert ('id="log-tail" hx-get' in page) is goes_on


@pytest.mark.parametrize("run", ["nonsense", "00000000-0000-4000-8000-000000000000"])
def test_the_log_of_an_unknown_run_is_not_found(world: World, run: str) -> None:
    job = run_job(world, world.vision, "train", host="alpha", gpus=[0])
    assert (
        signed_in(world.vision.member).get(reverse("job-log", args=[job.public_id]), {"run": run}).status_code
        == 404
    )


def test_a_team_mate_who_relaunches_sees_names_of_environment_variables_but_no_values(world: World) -> None:
    job = queue_job(world, world.vision, "trainer", environment={"TOKEN": "s3cret"})
    again = reverse("workload-relaunch", args=[job.public_id])
    assert "TOKEN=s3cret" in signed_in(world.vision.member).get(again, follow=True).content.decode()
    for viewer in (world.vision.members[1], world.vision.lead):
        page = signed_in(viewer).get(again, follow=True).content.decode()
        assert "TOKEN=" in page
        assert "s3cret" not in page


@pytest.mark.long
def test_relaunch_opens_the_form_with_the_previous_values(world: World) -> None:
    job = queue_job(world, world.vision, "train", command="python train.py --epochs 3")
    client = signed_in(world.vision.member)
    answer = client.get(reverse("workload-relaunch", args=[job.public_id]), follow=True)
    page = answer.content.decode()
    assert "python train.py --epochs 3" in page
    assert 'value="train"' in page


# -- lists ---------------------------------------------------------------------------------------------------


def test_lists_filter_sort_and_page_by_their_url(world: World) -> None:
    for number in range(30):
        queue_job(world, world.vision, f"job-{number:02d}")
    client = signed_in(world.vision.member)
    first = client.get(reverse("jobs"), {"sort": "name"}).content.decode()
    assert "job-00" in first
    assert "job-29" not in first
    assert "job-29" in client.get(reverse("jobs"), {"sort": "name", "page": 2}).content.decode()
    page = client.get(reverse("jobs"), {"find": "job-17"}).content.decode()
    assert "job-17" in page
    assert "job-16" not in page


def test_the_filter_failed_includes_every_failed_outcome(world: World) -> None:
    now = timezone.now()
    failed = ("killed_at_grace", "lease_lost", "out_of_disk", "disk_ran_low", "host_full")
    for code in (*failed, "finished", "cancelled"):
        queue_job(world, world.vision, f"w-{code}", state="ended", outcome=code, ended_at=now)
    page = signed_in(world.vision.member).get(reverse("jobs"), {"state": "failed"}).content.decode()
    assert [code for code in failed if f"w-{code}" not in page] == []
    assert "w-finished" not in page and "w-cancelled" not in page


@pytest.mark.parametrize(
    "query",
    [
        "sort=-nonsense",
        "page=-4",
        "state=nonsense",
        *(
            pytest.param(query, marks=pytest.mark.long)
            for query in ("page=abc", "page=999", "mine=%27", "find=" + "x" * 500)
        ),
    ],
)
def test_invalid_query_parameters_still_return_a_page(world: World, query: str) -> None:
    queue_job(world, world.vision, "train")
    assert signed_in(world.vision.member).get(f"{reverse('jobs')}?{query}").status_code == 200
    assert signed_in(world.vision.member).get(f"{reverse('queue')}?{query}").status_code == 200


def test_a_name_that_a_spreadsheet_would_execute_is_quoted_in_the_csv(world: World) -> None:
    queue_job(world, world.vision, "=1+1")
    answer = signed_in(world.vision.member).get(reverse("jobs"), {"format": "csv"})
    text = b"".join(answer).decode()  # type: ignore[arg-type]
    assert ",'=1+1," in text
    assert ",'," not in text, "an empty cell stays empty"


# -- queue ---------------------------------------------------------------------------------------------------


def test_an_expanded_queue_row_shows_blockers_and_fair_share(world: World) -> None:
    other = run_job(world, world.language, "secret-llm", host="alpha", gpus=[0, 1, 2, 3, 4, 5, 6, 7])
    job = make_waiting(world, world.vision, "mri-foundation", blockers=[other.pk])
    page = signed_in(world.vision.member).get(reverse("queue"), {"open": str(job.public_id)}).content.decode()
    assert "Why them, not me?" in page
    assert "Work of another team" in page
    assert "secret-llm" not in page
    assert "Language" in page
    operator = signed_in(world.operator).get(reverse("why", args=[job.public_id])).content.decode()
    assert "secret-llm" in operator


def test_a_faster_variant_links_to_a_filled_in_form(world: World) -> None:
    run_job(world, world.language, "big", host="alpha", gpus=[0, 1, 2, 3, 4, 5])
    run_job(world, world.language, "big-2", host="beta", gpus=[0, 1, 2, 3, 4, 5])
    job = make_waiting(world, world.vision, "mri-foundation", units=8)
    detail = signed_in(world.vision.member).get(reverse("why", args=[job.public_id])).context["detail"]
    assert detail["sooner"]
    form = signed_in(world.vision.member).get(detail["sooner"][0]["url"])
    assert form.status_code == 200
    assert form.context["form"].initial["kind"] == "job"


# -- search, theme, time zone --------------------------------------------------------------------------------


def test_the_search_finds_only_visible_objects(world: World) -> None:
    queue_job(world, world.vision, "vessel-seg")
    queue_job(world, world.language, "vessel-llm")
    page = (
        signed_in(world.vision.member)
        .get(reverse("search"), {"q": "vessel"}, headers={"HX-Request": "true"})
        .content.decode()
    )
    assert "vessel-seg" in page
    assert "vessel-llm" not in page


def test_pages_use_the_time_zone_of_the_user_then_the_browser_then_the_organisation(world: World) -> None:
    world.organisation.time_zone = "Asia/Tokyo"
    world.organisation.save()
    client, some_page = signed_in(world.vision.member), reverse("tokens")
    assert "Times in Asia/Tokyo" in client.get(some_page).content.decode()
    client.cookies["tz"] = "America/Lima"
    assert "Times in America/Lima" in client.get(some_page).content.decode()
    client.cookies["tz"] = "America%2FHavana"  # written by the script of the page
    assert "Times in America/Havana" in client.get(some_page).content.decode()
    client.cookies["tz"] = "../../etc/passwd"
    assert "Times in Asia/Tokyo" in client.get(some_page).content.decode()
    world.vision.member.time_zone = "Europe/Oslo"
    world.vision.member.save()
    page = client.get(some_page).content.decode()
    assert "Times in Europe/Oslo" in page and "data-zone-guessed" not in page


def test_pages_about_money_use_the_zone_of_the_organisation_and_others_that_of_the_viewer(
    world: World,
) -> None:
    world.organisation.time_zone = "Asia/Tokyo"
    world.organisation.save()
    client = signed_in(world.finance)
    client.cookies["tz"] = "America/Lima"
    price = Price.objects.create(
        model=H100,
        valid_from=dt.datetime(2026, 3, 1, 18, tzinfo=dt.UTC),
        cost_per_gpu_hour=1,
        price_per_gpu_hour=2,
        currency="EUR",
        created_at=timezone.now(),
    )
    card = client.get(reverse("rate-card")).content.decode()
    assert f'id="price-{price.pk}"' in card and "2 Mar" in card and "03:00</time>" in card
    assert "Times in Asia/Tokyo" in card and "data-zone-guessed" not in card
    assert "Times in America/Lima" in client.get(reverse("tokens")).content.decode()
    assert "Times in America/Lima" in client.get(reverse("utilisation")).content.decode()


def test_the_preferred_theme_applies_until_the_browser_chooses(world: World) -> None:
    world.vision.member.theme = "dark"
    world.vision.member.save()
    client = signed_in(world.vision.member)
    assert 'data-theme="dark"' in client.get(reverse("tokens")).content.decode()
    client.cookies["theme"] = "light"
    assert 'data-theme="light"' in client.get(reverse("tokens")).content.decode()


def test_every_page_marks_simulated_data(world: World) -> None:
    assert "All hosts are simulated" in signed_in(world.vision.member).get(reverse("queue")).content.decode()


# -- reservations --------------------------------------------------------------------------------------------


def test_a_reservation_is_shortened_and_cancelled_from_its_page(world: World) -> None:
    row = reserve(world, world.vision, "review", hours=24, length=8)
    client = signed_in(world.vision.member)
    address = reverse("reservation", args=[row.public_id])
    assert "review" in client.get(address).content.decode()
    end = timezone.localtime(row.end - dt.timedelta(hours=4))
    assert client.post(address, {"end": f"{end:%Y-%m-%dT%H:%M}"}).status_code == 302
    row.refresh_from_db()
    assert abs(row.end - end) < dt.timedelta(minutes=1)
    later = client.post(address, {"end": "2199-01-01T00:00"})
    assert later.status_code == 400
    assert "allowed in Shared: up to 14 days after the start" in later.content.decode()
    cancel = reverse("reservation-cancel", args=[row.public_id])
    assert "Cancel review?" in client.post(cancel).content.decode()
    assert client.post(cancel, {"confirmed": "1"}).status_code == 302
    row.refresh_from_db()
    assert row.state == ReservationState.CANCELLED


def test_a_reservation_of_another_team_is_not_found(world: World) -> None:
    row = reserve(world, world.vision, "review", hours=24, length=8)
    assert (
        signed_in(world.language.member).get(reverse("reservation", args=[row.public_id])).status_code == 404
    )


@pytest.mark.long
def test_the_owner_of_work_evicted_by_a_failed_gpu_reads_which_gpu_and_why(world: World) -> None:
    """Check the work on the failed GPU, and the work on another GPU of the host.

    The health rules close the whole host. So work on its other GPUs is evicted too, and the owner of that
    work must also read which GPU failed.
    """
    on_it = run_job(world, world.vision, "on it", host="alpha", gpus=[0, 1], preemptible=True)
    beside = run_job(world, world.vision, "beside", host="alpha", gpus=[3], preemptible=True)
    desk = run_job(world, world.vision, "desk", host="alpha", gpus=[5], kind="notebook")
    now = timezone.now()
    HealthEvent.objects.create(
        host=world.hosts["alpha"],
        gpu=world.hosts["alpha"].gpus.get(index=1),
        event_id="1",
        source="xid",
        code="xid:79",
        at=now,
        received_at=now,
    )
    apply_rules_to_events(now)
    client = signed_in(world.vision.member)
    for job in (on_it, beside):
        page = client.get(reverse("job", args=[job.public_id])).content.decode()
        assert "GPU 1 of alpha failed (XID 79, " in page
        tab = client.get(reverse("job", args=[job.public_id]), {"tab": "attempts"}).content.decode()
        assert tab.count("GPU 1 of alpha failed (XID 79, ") == 2
    assert "and it ran on that GPU" in client.get(reverse("job", args=[on_it.public_id])).content.decode()
    assert "work that can move leaves it" in client.get(reverse("home")).content.decode()
    Workload.objects.filter(pk=beside.pk).update(state="queued", stop_requested="")
    assert "GPU 1 of alpha failed" in client.get(reverse("job", args=[beside.public_id])).content.decode()
    assert "failed" not in client.get(reverse("notebook", args=[desk.public_id])).content.decode()


def test_an_ended_notebook_shows_its_gpus_and_that_it_was_stopped(world: World) -> None:
    desk = run_job(world, world.vision, "desk", host="alpha", gpus=[0, 1], kind="notebook")
    Workload.objects.filter(pk=desk.pk).update(models_wanted=[])
    now = timezone.now()
    Allocation.objects.filter(workload=desk).update(period=DateTimeTZRange(desk.started_at, now))
    Run.objects.filter(workload=desk).update(state="ended", outcome="cancelled", ended_at=now)
    Workload.objects.filter(pk=desk.pk).update(
        state="ended", outcome="cancelled", stop_requested="cancelled", ended_at=now
    )
    desk.refresh_from_db()
    assert workload_text.displayed_state(desk) == "cancelled"
    owner = signed_in(world.vision.member)
    for listed in ("notebooks", "home"):
        page = owner.get(reverse(listed)).content.decode()
        assert "2 × H100 80GB" in page and "any GPU" not in page
    page = owner.get(reverse("notebook", args=[desk.public_id])).content.decode()  # also shows the request
    assert "2 × H100 80GB" in page
    assert re.search(r"<span>Ran</span><b>30 min", page)
    assert "Time left" not in page and "no price set" not in page and "is being stopped" not in page


@pytest.mark.long  # in the short part, test_why_page.py has ended work that never ran
def test_cancelled_work_that_never_ran_says_so_and_cost_nothing(world: World) -> None:
    never = make_waiting(world, world.vision, "never ran")
    Workload.objects.filter(pk=never.pk).update(
        state="ended", outcome="cancelled", stop_requested="cancelled", ended_at=timezone.now()
    )
    never.refresh_from_db()
    assert workload_text.displayed_state(never) == "cancelled"
    owner = signed_in(world.vision.member)
    page = owner.get(reverse("job", args=[never.public_id])).content.decode()
    assert re.search(r"<span>Ran</span><b>did not run", page)
    assert re.search(r"<span>Cost</span><b>€0.00", page)
    for listed in ("home", "jobs"):
        row = re.search(r"never ran</a>.*?</tr>", owner.get(reverse(listed)).content.decode(), re.DOTALL)
        assert row is not None and "did not run" in row.group() and "€0.00" in row.group(), listed


def test_run_time_counts_attempts_and_not_the_time_between_them(world: World) -> None:
    """Use two attempts of thirty and twenty minutes, with four hours of waiting between them."""
    job = run_job(world, world.vision, "two of them", host="alpha", gpus=[0])
    first = job.runs.get()
    began = first.running_at - dt.timedelta(hours=4)
    Run.objects.filter(pk=first.pk).update(
        state="ended", outcome="checkpointed", running_at=began, ended_at=began + dt.timedelta(minutes=30)
    )
    again = timezone.now() - dt.timedelta(minutes=20)
    Run.objects.create(
        workload=job,
        attempt=2,
        host=first.host,
        generation=first.generation + 1,
        state="ended",
        outcome="finished",
        placed_at=again,
        starting_at=again,
        running_at=again,
        ended_at=again + dt.timedelta(minutes=20),
    )
    Workload.objects.filter(pk=job.pk).update(
        state="ended",
        outcome="finished",
        attempt=2,
        started_at=began,
        ended_at=again + dt.timedelta(minutes=20),
    )
    owner = signed_in(world.vision.member)
    for address in (reverse("home"), reverse("jobs"), reverse("job", args=[job.public_id])):
        assert "50 min" in owner.get(address).content.decode(), address


def test_run_time_of_a_gang_is_from_its_first_to_its_last_member(world: World) -> None:
    job = run_job(world, world.vision, "gang", host="alpha", gpus=[0], hosts=2)
    first = job.runs.get()
    Run.objects.filter(pk=first.pk).update(
        state="ended", outcome="failed", ended_at=first.running_at + dt.timedelta(minutes=10)
    )
    Run.objects.create(
        workload=job,
        attempt=1,
        rank=1,
        host=world.hosts["beta"],
        generation=first.generation + 1,
        state="ended",
        outcome="host_lost",
        placed_at=first.placed_at,
        starting_at=first.running_at,
        running_at=first.running_at,
        ended_at=first.running_at + dt.timedelta(minutes=25),
    )
    Workload.objects.filter(pk=job.pk).update(state="ended", outcome="host_lost", ended_at=timezone.now())
    page = signed_in(world.vision.member).get(reverse("job", args=[job.public_id])).content.decode()
    assert re.search(r"<span>Ran</span><b>25 min", page)


def test_run_time_of_work_cancelled_while_it_waits_to_resume_ends_with_its_last_run(world: World) -> None:
    job = run_job(world, world.vision, "taken back", host="alpha", gpus=[0])
    gone = job.started_at + dt.timedelta(minutes=7)
    Run.objects.filter(workload=job).update(state="ended", outcome="checkpointed", ended_at=gone)
    Workload.objects.filter(pk=job.pk).update(state="ended", outcome="cancelled", ended_at=timezone.now())
    page = signed_in(world.vision.member).get(reverse("job", args=[job.public_id])).content.decode()
    assert re.search(r"<span>Ran</span><b>7 min", page)


def test_work_that_lost_its_host_says_so_while_it_waits_to_resume(world: World) -> None:
    job = run_job(world, world.vision, "lost", host="alpha", gpus=[0])
    Run.objects.filter(workload=job).update(state="ended", outcome="host_lost", ended_at=timezone.now())
    Workload.objects.filter(pk=job.pk).update(state="queued", reason_code="waits_for_units")
    page = signed_in(world.vision.member).get(reverse("job", args=[job.public_id])).content.decode()
    assert "Its host fell silent. It wrote no checkpoint and starts from the beginning." in page


def test_stopping_a_ready_notebook_marks_no_startup_step_as_failed(world: World) -> None:
    desk = run_job(world, world.vision, "desk", host="alpha", gpus=[0], kind="notebook")
    slow = run_job(world, world.vision, "slow", host="alpha", gpus=[1], kind="notebook")
    Run.objects.filter(workload=slow).update(ready_at=None)
    Workload.objects.filter(pk__in=[desk.pk, slow.pk]).update(state="stopping", stop_requested="cancelled")
    for notebook, states in ((desk, ["done"] * 5), (slow, ["done"] * 3 + ["failed", "todo"])):
        piece = workload_details.workload_details(
            [Workload.objects.select_related(*workload_details.RELATED).get(pk=notebook.pk)],
            world.vision.member,
            timezone.now(),
        )[0]
        assert [step["state"] for step in workload_card.startup_steps(piece)] == states


@pytest.mark.parametrize(("runs", "label"), [(True, "Per hour now"), (False, "Per hour, once it runs")])
def test_the_cost_tab_shows_future_cost_only_for_work_that_has_not_ended(
    world: World, runs: bool, label: str
) -> None:
    job = make_waiting(world, world.vision, "costs")
    if runs:
        start(world, job, host="alpha", gpus=[0], since=timezone.now())
    since = timezone.now() - dt.timedelta(days=1)
    Price.objects.create(
        model=H100, cost_per_gpu_hour="1.5", price_per_gpu_hour="2", valid_from=since, created_at=since
    )
    owner = signed_in(world.vision.member)
    page = owner.get(reverse("job", args=[job.public_id]) + "?tab=cost").content.decode()
    assert label in page and "At most" in page and "So far" in page
    Allocation.objects.filter(workload=job).update(period=DateTimeTZRange(job.started_at, timezone.now()))
    Workload.objects.filter(pk=job.pk).update(state="ended", outcome="finished", ended_at=timezone.now())
    page = owner.get(reverse("job", args=[job.public_id]) + "?tab=cost").content.decode()
    assert "Per hour" not in page and "At most" not in page and "Total cost" in page


def test_a_utilisation_chart_needs_two_samples_and_slices_are_marked_as_not_measured(
    world: World,
) -> None:
    job = run_job(world, world.vision, "measured", host="alpha", gpus=[0])
    sliced = run_job(world, world.vision, "sliced", host="alpha", gpus=[1], profile="1g.10gb")
    owner, minute = signed_in(world.vision.member), timezone.now().replace(second=0, microsecond=0)

    def reads(of: Workload, minutes_ago: int, used: float | None) -> None:
        held = Allocation.objects.get(workload=of)
        store_rollup(
            60,
            minute - dt.timedelta(minutes=minutes_ago),
            held.unit,
            held,
            samples=6,
            covered_seconds=60,
            utilisation_seconds=used,
            memory_used_max_mib=4096,
        )

    def tab(of: Workload) -> str:
        return owner.get(reverse("job", args=[of.public_id]), {"tab": "use"}).content.decode()

    assert "No readings yet" in tab(job)
    reads(job, 2, 30)
    assert "from the second reading on" in tab(job) and "4.0" in tab(job)
    reads(job, 1, 30)
    assert "plotly" in tab(job) and "from the second reading on" not in tab(job)
    for minutes_ago in (1, 2, 3):
        reads(sliced, minutes_ago, None)
    assert "Utilisation, %: not measured" in tab(sliced) and "4.0" in tab(sliced)


def test_only_work_that_has_run_waits_to_resume(world: World) -> None:
    """Check that work whose start failed on every host is shown as queued."""
    ran = run_job(world, world.vision, "ran", host="alpha", gpus=[0])
    never = queue_job(world, world.vision, "never ran", attempt=1, reason_code="prolog_failed")
    Workload.objects.filter(pk=ran.pk).update(state="queued", reason_code="preempted")
    ran.refresh_from_db()
    owner = signed_in(world.vision.member)
    for job, word in ((ran, "Waits to resume"), (never, "Queued")):
        assert (
            STATE_DISPLAY[workload_text.displayed_state(job)][0]
            == state_labels.workload_state_label(job)[1]
            == word
        )
        page = owner.get(reverse("job", args=[job.public_id])).content.decode()
        assert word in page
        assert ("It wrote no checkpoint and starts from the beginning." in page) is (job is ran)


def test_everybody_who_sees_a_notebook_sees_who_stopped_it(world: World) -> None:
    desk = run_job(world, world.vision, "desk", host="alpha", gpus=[0], kind="notebook")
    waiting = make_waiting(world, world.vision, "later")
    lead, owner = signed_in(world.vision.lead), signed_in(world.vision.member)
    lead.post(
        reverse("workload-cancel", args=[desk.public_id]), {"confirmed": "1", "why": "the GPU is needed"}
    )
    owner.post(reverse("workload-cancel", args=[waiting.public_id]), {"confirmed": "1"})
    name = world.vision.lead.username
    page = owner.get(reverse("notebook", args=[desk.public_id])).content.decode()
    assert f"It is being cancelled by {name}: the GPU is needed." in page
    Workload.objects.filter(pk=desk.pk).update(state="ended", outcome="cancelled", ended_at=timezone.now())
    page = owner.get(reverse("notebook", args=[desk.public_id])).content.decode()
    assert f"{name} cancelled it: the GPU is needed." in page
    assert f"Cancelled by {name}" in page
    for listed in ("home", "notebooks"):
        assert f"Cancelled by {name}" in owner.get(reverse(listed)).content.decode()
    assert "Cancelled by you" in lead.get(reverse("notebooks")).content.decode()
    job = owner.get(reverse("job", args=[waiting.public_id])).content.decode()
    assert "You cancelled it." in job
    assert "Cancelled by you" in job


def test_a_queue_with_work_of_other_teams_only_says_so(world: World) -> None:
    make_waiting(world, world.language, "llm", units=4)
    page = signed_in(world.vision.member).get(reverse("queue")).content.decode()
    assert "1 waits for 4 units, none of them from your teams; 0 run." in page
    assert "No workload of your teams waits" in page
    assert "Nothing waits" not in page
    assert "Waiting 0" in page
    page = signed_in(world.operator).get(reverse("queue")).content.decode()
    assert "1 waits for 4 units; 0 run." in page
    assert "Waiting 1" in page


# -- the request form ----------------------------------------------------------------------------------------


def ask_data(world: World, **changes: str) -> dict[str, str]:
    start = timezone.localtime(timezone.now() + dt.timedelta(days=1)).replace(minute=0)
    return {
        "kind": "reservation",
        "project": str(world.vision.project.pk),
        "target": f"shared|{H100}|",
        "count": "2",
        "start": f"{start:%Y-%m-%dT%H:%M}",
        "length": "8",
        "length_unit": "hours",
        "name": "review",
        "priority": "normal",
        **changes,
    }


def test_a_small_reservation_is_confirmed_at_once(world: World) -> None:
    answer = signed_in(world.vision.member).post(reverse("ask"), ask_data(world))
    row = Reservation.objects.get()
    assert answer["Location"] == reverse("reservation", args=[row.public_id])
    assert (row.units, row.models_wanted) == (2, [H100])


@pytest.mark.long
def test_a_large_reservation_waits_for_approval(world: World) -> None:
    answer = signed_in(world.vision.member).post(reverse("ask"), ask_data(world, count="8"), follow=True)
    assert Submission.objects.get().payload["units"] == 8
    assert "waits for approval" in answer.content.decode()
    assert not Reservation.objects.exists()


def test_a_job_is_submitted_with_every_field_of_the_form(world: World) -> None:
    data = ask_data(
        world,
        kind="job",
        command="python train.py",
        hosts="2",
        most_retries="1",
        preemptible="on",
        environment="SEED=7\nMODE=fast",
    )
    signed_in(world.vision.member).post(reverse("job-submit"), data)
    job = Workload.objects.get()
    assert (job.units, job.hosts, job.most_retries, job.preemptible) == (2, 2, 1, True)
    assert job.environment == {"SEED": "7", "MODE": "fast"}
    assert job.max_runtime_seconds == 8 * 3600


def test_the_form_remembers_the_last_request(world: World) -> None:
    client = signed_in(world.vision.member)
    client.post(reverse("ask"), ask_data(world, count="4", length="3"))
    page = client.get(reverse("ask"))
    assert page.context["form"].initial["count"] == "4"
    assert "Filled in from your last request" in page.content.decode()


# The short part has a request that breaks a rule of the same kind as each of these.
MORE_INVALID_REQUESTS: list[tuple[dict[str, str], str]] = [
    ({"length": "-4"}, "allowed: more than 0"),
    ({"length": "NaN"}, "allowed"),
    ({"count": "other", "units_other": "-3"}, "allowed: a whole number from 1"),
    ({"count": "other", "units_other": "99999999999999999999"}, "allowed: a whole number from 1"),
    ({"start": ""}, "Start is empty"),
    ({"length": "1e400"}, "allowed"),
    ({"length": "90000", "length_unit": "days"}, "allowed"),
    ({"count": "other", "units_other": ""}, "How many GPUs is empty"),
    ({"count": "other", "units_other": "many"}, "whole number"),
    ({"project": "0"}, "is not one of the available choices"),
    ({"name": "n" * 10_000}, "characters"),
    ({"kind": "job", "command": "true", "environment": "no equals sign"}, "allowed: NAME=value"),
    ({"kind": "job", "command": "true", "most_retries": "1000"}, "allowed"),
    ({"kind": "job", "command": "true", "hosts": "0"}, "allowed"),
]


@pytest.mark.parametrize(
    ("changes", "words"),
    first_cases(
        3,
        [
            *(pytest.param(*each, marks=pytest.mark.long) for each in MORE_INVALID_REQUESTS),
            ({"start": "yesterday"}, "This is not a date and time"),
            ({"start": "2001-01-01T09:00"}, "which is past"),
            ({"start": "9999-12-31T23:00"}, "allowed"),
            ({"length": "0"}, "allowed: more than 0"),
            ({"count": "other", "units_other": "0"}, "allowed: a whole number from 1"),
            ({"target": "nowhere|H9000|"}, "is not one of the available choices"),
            ({"name": "a\u202eb"}, "U+202E"),
            ({"kind": "job", "command": ""}, "command"),
            ({"kind": "job", "command": "true", "environment": "LD_PRELOAD=x"}, "LD_PRELOAD"),
        ],
    ),
)
def test_an_invalid_request_is_refused_at_its_field_and_creates_nothing(
    world: World, changes: dict[str, str], words: str
) -> None:
    client = signed_in(world.vision.member)
    answer = client.post(reverse("ask"), ask_data(world, why="because of the deadline", **changes))
    page = answer.content.decode()
    assert answer.status_code == 400, page[:500]
    assert words in page
    assert "because of the deadline" in page
    assert not any(model.objects.exists() for model in MADE)
    preview = client.post(reverse("ask-preview"), ask_data(world, **changes))
    assert preview.status_code == 200


@pytest.mark.parametrize(
    "begin",
    ["2001-01-01T09:00", *(pytest.param(at, marks=pytest.mark.long) for at in ("", "9999-12-31T23:00"))],
)
def test_a_refused_reservation_keeps_the_chart_and_offers_the_first_window_that_fits(
    world: World, begin: str
) -> None:
    page = signed_in(world.vision.member).post(reverse("ask"), ask_data(world, start=begin)).content.decode()
    assert '<svg class="chart"' in page
    assert "First window that fits" in page
    assert page.count('name="use_start"') == 2  # one button in the note and one in the list


@pytest.mark.long  # in the short part, test_an_invalid_request_… has a start outside the allowed years
def test_a_reservation_outside_the_allowed_years_is_refused_in_each_zone(world: World) -> None:
    client = signed_in(world.vision.member)
    for zone, begin in (("Europe/Berlin", "0001-01-01T00:00"), ("America/New_York", "9999-12-31T23:59")):
        client.cookies["tz"] = zone
        for address in ("ask", "ask-preview"):
            answer = client.post(reverse(address), ask_data(world, start=begin))
            assert "allowed: from the year 2 to 9998" in answer.content.decode(), (zone, address)


@pytest.mark.long
def test_a_reservation_that_is_too_long_keeps_the_chart_without_a_window(world: World) -> None:
    client = signed_in(world.vision.member)
    page = client.post(reverse("ask"), ask_data(world, length="90000")).content.decode()
    assert '<svg class="chart"' in page
    assert "First window that fits" not in page


def test_a_reservation_of_taken_units_keeps_the_chart_and_offers_windows(world: World) -> None:
    client = signed_in(world.vision.member)
    taken = reserve(world, world.vision, "taken", hours=24, length=6, units=8)
    start = timezone.localtime(taken.start + dt.timedelta(minutes=30))
    page = client.post(
        reverse("ask"), ask_data(world, count="8", start=f"{start:%Y-%m-%dT%H:%M}")
    ).content.decode()
    assert '<svg class="chart"' in page
    assert page.count('name="use_start"') >= 2


def test_an_error_in_an_argument_is_shown_at_its_field(world: World) -> None:
    client = signed_in(world.vision.member)
    page = client.post(reverse("ask"), ask_data(world, count="other", units_other="999")).content.decode()
    assert 'id="id_units_other_error"' in page
    page = client.post(reverse("ask"), ask_data(world, length="9000")).content.decode()
    assert 'id="id_length_error"' in page


def test_a_window_that_fits_later_explains_that_no_unit_is_free_now(world: World) -> None:
    run_job(world, world.language, "lent", host="alpha", gpus=list(range(8)), preemptible=True)
    run_job(world, world.robotics, "lent too", host="beta", gpus=list(range(8)), preemptible=True)
    client = signed_in(world.vision.member)
    page = client.post(reverse("ask-preview"), ask_data(world)).content.decode()
    assert "It fits." in page
    assert "Right now none is free. A reservation counts the GPUs that are free when it starts" in page
    assert "0 of 16 free now" in client.get(reverse("ask")).content.decode()


def test_a_nul_character_in_a_name_is_refused(world: World) -> None:
    answer = signed_in(world.vision.member).post(reverse("ask"), ask_data(world, name="a\0b"))
    assert answer.status_code == 400
    assert not any(model.objects.exists() for model in MADE)


def test_the_preview_shows_free_units_cost_and_the_equivalent_commands(world: World) -> None:
    answer = signed_in(world.vision.member).post(reverse("ask-preview"), ask_data(world))
    page = answer.content.decode()
    assert "It fits." in page
    assert "gpupool reservation create" in page
    assert "/api/v1/reservations/" in page
    assert "Vision has then" in page and "2 of 8" in page and "Within the guarantee" in page
    assert not Reservation.objects.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"kind": "notebook", "type": "interactive"}, marks=pytest.mark.long),
        {
            "kind": "job",
            "command": "python train.py; echo done",
            "environment": "SEED=7",
            "hosts": "2",
            "preemptible": "on",
        },
    ],
)
def test_the_shown_api_call_creates_the_request_and_the_shown_options_exist(
    world: World, changes: dict[str, str]
) -> None:
    import json
    import shlex

    import cli.main

    client = signed_in(world.vision.member)
    same = client.post(reverse("ask-preview"), ask_data(world, **changes)).context["view"]["same"]
    words = shlex.split(same.api.replace("\\\n", " "))
    path = "/api/v1/" + words[words.index("-X") + 2].split("/api/v1/")[1]
    answer = client.post(path, words[words.index("-d") + 1], content_type="application/json")
    assert answer.status_code == 201, answer.content
    created = Reservation.objects.get() if not changes else Workload.objects.get()
    assert (created.units, created.project, created.name) == (2, world.vision.project, "review")
    assert json.loads(words[words.index("-d") + 1])["project"] == "vision/vision-main"
    command: object = cli.main.cli
    spoken = shlex.split(same.cli)
    for word in spoken[1:3]:
        command = command.commands[word]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}  # type: ignore[attr-defined]
    options = spoken[3 : spoken.index("--")] if "--" in spoken else spoken[3:]
    assert {word for word in options if word.startswith("--")} <= known


def test_a_reservation_above_a_limit_has_a_red_window_and_one_answer_about_the_quota(world: World) -> None:
    client = signed_in(world.vision.member)
    reserve(world, world.vision, "mine", hours=20, length=16, units=6)
    Quota.objects.filter(team=world.vision.team, pool=world.shared, model=H100).update(borrow_limit_slots=0)
    answer = client.post(reverse("ask-preview"), ask_data(world, count="4"))
    view, page = answer.context["view"], answer.content.decode()
    assert not view["fits"] and "may hold 8 GPUs" in view["blocks"][0]["text"]
    assert (view["quota"]["held"], view["quota"]["after"]) == ("6 of 8", "10 of 8")
    assert view["quota"]["over"] == 4 and "Within the guarantee" not in page
    assert "free-short" in {bar["kind"] for bar in view["chart"]["bars"]}
    assert "free-range" not in {bar["kind"] for bar in view["chart"]["bars"]}
    assert "your range: does not fit" in page


def test_a_job_that_waits_has_one_expected_start_and_no_chart_of_another_plan(world: World) -> None:
    run_job(world, world.language, "first", host="alpha", gpus=list(range(8)))
    run_job(world, world.robotics, "second", host="beta", gpus=list(range(8)))
    answer = signed_in(world.vision.member).post(
        reverse("ask-preview"), ask_data(world, kind="job", command="true")
    )
    view, page = answer.context["view"], answer.content.decode()
    assert view["expected_start"] is not None and not view["starts_now"]
    assert page.count(f"Expected start: {view['likely']}.") == 2, "the note and the line beside Submit"
    assert "chart" not in view and "Within the guarantee" not in page


@pytest.mark.long
def test_a_full_window_is_shown_with_a_button_for_its_fix(world: World) -> None:
    client = signed_in(world.vision.member)
    reserve(world, world.language, "asr-demo", hours=20, length=16, units=4)
    reserve(world, world.robotics, "arm", hours=20, length=16, units=2)
    reserve(world, world.vision, "mine", hours=20, length=16, units=8)
    answer = client.post(reverse("ask-preview"), ask_data(world, count="8"))
    view = answer.context["view"]
    assert view["blocks"], answer.content.decode()
    assert view["windows"]
    value = view["windows"][0]["value"]
    fixed = client.post(reverse("ask"), ask_data(world, count="8", use_start=value))
    assert fixed.status_code == 200
    assert f'value="{value}"' in fixed.content.decode()
    assert not Submission.objects.exists()


@pytest.mark.parametrize(
    "typed", ["²", "-1", *(pytest.param(typed, marks=pytest.mark.long) for typed in ("٣", "many", ""))]
)
def test_an_invalid_fix_changes_nothing(world: World, typed: str) -> None:
    answer = signed_in(world.vision.member).post(reverse("ask"), ask_data(world, use_units=typed))
    assert answer.status_code == 200
    assert answer.context["form"].data["count"] == "2"


def test_the_preview_of_a_job_shows_its_expected_start(world: World) -> None:
    answer = signed_in(world.vision.member).post(
        reverse("ask-preview"), ask_data(world, kind="job", command="true")
    )
    assert "It would start now" in answer.content.decode()


def test_a_range_selected_in_the_calendar_fills_in_the_form(world: World) -> None:
    start = timezone.now() + dt.timedelta(days=3)
    answer = signed_in(world.vision.member).get(
        reverse("ask"),
        {
            "kind": "reservation",
            "target": f"shared|{H100}|",
            "units": "6",
            "start": start.isoformat(),
            "end": (start + dt.timedelta(minutes=90)).isoformat(),
        },
    )
    initial = answer.context["form"].initial
    assert (initial["count"], initial["units_other"]) == ("other", 6)
    assert (initial["length"], initial["length_unit"]) == (90, "minutes")


# -- the calendar --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zoom", ["hour", "day", "week", "month", "nonsense"])
def test_the_calendar_renders_at_every_zoom(world: World, zoom: str) -> None:
    run_job(world, world.vision, "vessel-seg", host="alpha", gpus=[0, 1])
    reserve(world, world.vision, "review", hours=1, length=2)
    page = signed_in(world.vision.member).get(reverse("calendar"), {"zoom": zoom}).content.decode()
    assert "vessel-seg" in page


def test_reservations_of_other_teams_are_shown_as_taken_without_their_names(world: World) -> None:
    run_job(world, world.language, "secret-llm", host="alpha", gpus=[0, 1])
    reserve(world, world.language, "secret-plan", hours=1, length=2)
    page = signed_in(world.vision.member).get(reverse("calendar")).content.decode()
    assert "secret-llm" not in page
    assert "secret-plan" not in page
    assert "Language: taken" in page
    assert "secret-plan" in signed_in(world.operator).get(reverse("calendar")).content.decode()


@pytest.mark.parametrize("at", ["nonsense", "0001-01-01", "9999-12-31", "2026-13-45", "2026-03-29T02:30"])
def test_an_invalid_date_shows_today(world: World, at: str) -> None:
    assert signed_in(world.vision.member).get(reverse("calendar"), {"at": at}).status_code == 200


def test_models_expand_and_collapse_by_links(world: World) -> None:
    client = signed_in(world.vision.member)
    page = client.get(reverse("calendar"))
    row = page.context["rows"][0]
    assert row["is_open"]
    folded = client.get(row["url"])
    assert not folded.context["rows"][0]["is_open"]


def test_the_feed_is_an_icalendar_of_own_teams_with_a_secret_url(world: World) -> None:
    import icalendar

    reserve(world, world.vision, "review", hours=1, length=2)
    reserve(world, world.language, "secret-plan", hours=1, length=2)
    url = signed_in(world.vision.member).get(reverse("calendar")).context["feed_url"]
    path = url[url.index("/calendar/feed/") :]
    answer = Client().get(path)
    assert answer["Content-Type"].startswith("text/calendar")
    events = list(icalendar.Calendar.from_ical(answer.content).walk("VEVENT"))
    assert [str(event["summary"]).split(":")[0] for event in events] == ["review"]
    assert Client().get(path.replace(".ics", "x.ics")).status_code == 404
    world.vision.member.set_password("another long password")
    world.vision.member.save()
    assert Client().get(path).status_code == 404


# -- home pages of operators and finance ---------------------------------------------------------------------


def test_an_operator_sees_pending_decisions_and_unhealthy_hosts_first(world: World) -> None:
    signed_in(world.vision.member).post(reverse("ask"), ask_data(world, count="8"))
    world.hosts["beta"].lease_state = "silent"
    world.hosts["beta"].state_reason = "no news since nine"
    world.hosts["beta"].save()
    make_waiting(world, world.language, "asr-large")
    page = signed_in(world.operator).get(reverse("home")).content.decode()
    for words in (
        "Waits for a decision",
        "8 × H100",
        "beta",
        "Waits longest",
        "asr-large",
    ):
        assert words in page
    member = signed_in(world.vision.member).get(reverse("home")).content.decode()
    assert "Waits for a decision" not in member
    assert "asr-large" not in member


def test_finance_sees_the_cost_of_the_month_by_team_first_and_no_work(world: World) -> None:
    run_job(world, world.language, "secret-llm", host="alpha", gpus=[0])
    page = signed_in(world.finance).get(reverse("home")).content.decode()
    assert "Charged today" in page
    assert "Language" in page
    assert "secret-llm" not in page
    assert "Charged today" not in signed_in(world.vision.lead).get(reverse("home")).content.decode()


def test_the_form_can_ask_an_operator_for_a_request_beyond_the_guarantee(world: World) -> None:
    client = signed_in(world.language.member)  # team language is guaranteed 4 of the 16 GPUs
    fields = ask_data(world, count="8", project=str(world.language.project.pk))
    refused = client.post(reverse("ask"), fields)
    assert refused.status_code == 400
    assert "Ask an operator for permission to use guarantees of other teams" in refused.content.decode()
    answer = client.post(reverse("ask"), fields | {"may_exceed_guarantee": "on"})
    assert answer.status_code == 302, re.findall(r'class="error".*?</p>', answer.content.decode(), re.S)
    assert Submission.objects.get().payload["units"] == 8  # the request waits, because it needs an approval
    assert not Reservation.objects.exists()


def test_a_job_on_a_silent_host_says_so_and_what_happens_next(world: World) -> None:
    storm = run_job(world, world.language, "storm", host="alpha", gpus=[0])
    page = reverse("job", args=[storm.public_id])
    reported_at = timezone.now() - dt.timedelta(seconds=34)
    Host.objects.filter(name="alpha").update(last_sync_at=reported_at, lease_state="alive")
    assert "last reported" not in signed_in(world.language.member).get(page).content.decode()
    Host.objects.filter(name="alpha").update(lease_state="suspect")
    shown = signed_in(world.language.member).get(page).content.decode()
    ago = re.search(r"Its host alpha last reported (\d+) s ago\. Workloads there stop when its lease", shown)
    assert ago and 34 <= int(ago[1]) <= (timezone.now() - reported_at).total_seconds()
