"""Test requests for CPU, memory and NVLink.

These amounts are stored, used by the planner and sent to the agent. A refusal states the available amounts.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.urls import reverse
from rest_framework.test import APIClient

from portal.errors import Invalid
from portal.models import Submission
from portal.services.approvals import decisions
from portal.services.calendar import reservations
from portal.services.work import launch
from portal.wording import reason_texts, request_texts
from portal.wording.refusal_texts import refusal_sentence
from scheduler.cycle import engine
from scheduler.models import Gpu, Host, Pool, Reservation, Workload
from scheduler.sync import desired_state
from tests.portal.rejections import rejected
from tests.portal.web.test_work_pages import ask_data
from tests.portal.web.work_samples import queue_job, signed_in
from tests.seeds import first_cases
from tests.world import A100, H100, World

pytestmark = pytest.mark.django_db

GIB = 1024


@pytest.fixture
def sized(world: World) -> World:
    """Give alpha 64 cores and 512 GiB, beta 32 and 1 TiB, gamma 16 and 128 GiB."""
    sizes = {"alpha": (64, 512), "beta": (32, 1024), "gamma": (16, 128), "delta": (8, 64)}
    for name, (cores, memory) in sizes.items():
        Host.objects.filter(name=name).update(
            cpu_milli=cores * 1000, memory_mib=memory * GIB, credential_hash="x"
        )
    return world


def submit(world: World, **changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "train",
        "command": "true",
        "units": 1,
        "models": [H100],
        "max_runtime_seconds": 3600,
        "now": world.now,
    }
    return launch.submit_job(**(fields | changes))


def test_requested_sizes_are_reserved_by_the_planner_and_sent_to_the_agent(sized: World) -> None:
    first = submit(sized, name="first", cpu_milli=40_000, memory_mib=100 * GIB)
    second = submit(sized, name="second", cpu_milli=40_000, memory_mib=100 * GIB)
    engine.run_cycle("test", sized.now)
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, second.state) == ("placed", "queued"), "only alpha has 40 cores, for one workload"
    assert first.runs.get().host.name == "alpha"
    wanted = desired_state.desired(Host.objects.get(name="alpha"), sized.now).runs[0]
    assert (wanted.cpu_milli, wanted.memory_mib) == (40_000, 100 * GIB)


def test_notebooks_and_relaunched_workloads_keep_the_sizes(sized: World) -> None:
    fields: dict[str, Any] = {
        "cpu_milli": 4_000,
        "memory_mib": 32 * GIB,
        "min_compute_capability": 90,
        "nvlink": True,
    }
    workload = launch.launch_notebook(
        actor=sized.vision.member, project=sized.vision.project, pool=sized.shared, now=sized.now, **fields
    )
    copy = launch.relaunch_workload(actor=sized.vision.member, workload=workload, now=sized.now)
    for each in (
        workload,
        copy,
        launch.relaunch_workload(actor=sized.vision.member, workload=submit(sized, **fields), now=sized.now),
    ):
        assert {name: getattr(each, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("request_fields", "field", "words"),
    first_cases(
        3,
        [
            (
                {"cpu_milli": 96_000},
                "cpu_milli",
                "No host has 96 CPU cores in addition to 1 GPU: the most that one has is 64 CPU cores.",
            ),
            (
                {"memory_mib": 2048 * GIB, "units": 2},
                "memory_mib",
                (
                    "No host has 2,048 GiB of memory in addition to 2 GPUs:"
                    " the most that one has is 1,024 GiB of memory."
                ),
            ),
            (
                {"cpu_milli": 96_500, "memory_mib": 2048 * GIB},
                "cpu_milli",
                (
                    "No host has 96.5 CPU cores and 2,048 GiB of memory in addition to 1 GPU:"
                    " the most that one has is 64 CPU cores and 1,024 GiB"
                ),
            ),
            (
                {"cpu_milli": 64_000, "memory_mib": 1024 * GIB},
                "memory_mib",
                (
                    "No host has both 64 CPU cores and 1,024 GiB of memory in addition to 1 GPU."
                    " Ask for less of one of them."
                ),
            ),
            (
                {"cpu_milli": 64_000, "hosts": 2},
                "cpu_milli",
                (
                    "There are not 2 hosts that have 64 CPU cores in addition to 1 GPU:"
                    " the most that 2 hosts have is 32 CPU cores."
                ),
            ),
            ({"cpu_milli": 32_000, "models": [A100]}, "cpu_milli", "the most that one has is 16 CPU cores"),
            ({"units": 9, "cpu_milli": 96_000}, "units", "it asks for 9 GPUs on one host, the largest has 8"),
            (
                {"cpu_milli": -1},
                "cpu_milli",
                "cpu_milli is -1; allowed: a whole number from 0 to 10,000,000 thousandths of a core",
            ),
            ({"memory_mib": 10**9}, "memory_mib", "allowed: a whole number from 0 to 10,000,000 MiB"),
            ({"memory_mib": True}, "memory_mib", "memory_mib is True"),
        ],
    ),
)
def test_too_much_is_refused_at_its_field_with_what_is_available(
    sized: World, request_fields: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(Invalid) as refused:
        submit(sized, **request_fields)
    assert list(refused.value.fields) == [field] and words in refused.value.fields[field]
    assert not Workload.objects.exists()


def test_a_host_that_reports_no_size_does_not_cause_a_refusal(sized: World) -> None:
    Host.objects.filter(name="beta").update(cpu_milli=0)
    assert submit(sized, cpu_milli=96_000).state == "queued"


def test_cpu_is_not_blamed_for_other_missing_resources(sized: World) -> None:
    Gpu.objects.update(nvlink_group=F("index"))
    sizes = {"cpu_milli": 4_000, "memory_mib": 8 * GIB}
    with pytest.raises(Invalid) as refused:
        submit(sized, units=2, nvlink=True, **sizes)
    assert list(refused.value.fields) == ["nvlink"] and "both" not in refused.value.fields["nvlink"]
    with pytest.raises(Invalid) as refused:
        submit(sized, hosts=3, **sizes)
    assert list(refused.value.fields) == ["hosts"] and "Fewer than 3 hosts" in refused.value.fields["hosts"]


def test_the_reason_is_a_sentence_even_without_the_largest_sizes() -> None:
    sentence = reason_texts.reason_sentence(
        "too_big_for_any_host", {"units": 1, "largest": 8, "hosts": 1, "hosts_with_labels": 2}
    )
    assert (
        sentence == "No host has 1 GPU with the CPU, the memory or the NVLink that it asks for. Ask for less."
    )


def test_a_reservation_is_placed_on_hosts_with_the_requested_sizes(sized: World) -> None:
    start = sized.now + timedelta(hours=1)
    fields: dict[str, Any] = {
        "actor": sized.vision.member,
        "project": sized.vision.project,
        "pool": sized.shared,
        "name": "fed",
        "units": 1,
        "models": [H100],
        "start": start,
        "end": start + timedelta(hours=1),
        "now": sized.now,
        "memory_mib": 600 * GIB,
    }
    with rejected() as refused:
        reservations.request_reservation(**fields, cpu_milli=33_000)
    assert refused.value.field == "memory_mib" and "No host has both" in refusal_sentence(refused.value)
    reservation = reservations.request_reservation(**fields, cpu_milli=32_000)
    assert isinstance(reservation, Reservation) and (reservation.cpu_milli, reservation.memory_mib) == (
        32_000,
        600 * GIB,
    )
    page = (
        signed_in(sized.vision.member)
        .get(reverse("reservation", args=[reservation.public_id]))
        .content.decode()
    )
    assert "32 CPU cores and 600 GiB of memory" in page


def test_an_approved_reservation_has_the_requested_sizes(sized: World) -> None:
    Pool.objects.update(approval_above_gpus=0)
    sized.shared.refresh_from_db()
    start = sized.now + timedelta(hours=1)
    submission = reservations.request_reservation(
        actor=sized.vision.member,
        project=sized.vision.project,
        pool=sized.shared,
        name="fed",
        units=1,
        models=[H100],
        start=start,
        end=start + timedelta(hours=1),
        now=sized.now,
        cpu_milli=8_000,
        memory_mib=64 * GIB,
    )
    assert isinstance(submission, Submission)
    assert (
        "1 × H100 80GB on hosts with 8 CPU cores and 64 GiB of memory, "
        in request_texts.submission_summary(submission.kind, submission.payload)
    )
    wide = request_texts.submission_summary(submission.kind, submission.payload | {"hosts": 2})
    assert "2 hosts × 1 H100 80GB on hosts with 8 CPU cores" in wide
    decisions.approve_submission(actor=sized.operator, submission=submission, now=sized.now)
    row = Reservation.objects.get()
    assert (row.cpu_milli, row.memory_mib) == (8_000, 64 * GIB)


@pytest.mark.parametrize("kind", ["job", pytest.param("notebook", marks=pytest.mark.long)])
def test_the_form_accepts_and_shows_sizes(sized: World, kind: str) -> None:
    client = signed_in(sized.vision.member)
    sizes = {
        "cpus": "2.5",
        "memory": "64",
        "min_memory": "40",
        "min_capability": "9.0",
        "labels": "",
        "hosts": "1",
    }
    data = ask_data(sized, kind=kind, name=f"fed-{kind}", command="true", count="1", length="1", **sizes)
    preview = client.post(reverse("ask-preview"), data).context["preview"]
    assert "--cpus 2.5 --memory 64" in preview["same"].cli.replace(
        "--min-memory 40 --min-compute-capability 9.0 ", ""
    )
    assert (
        '"cpu_milli": 2500' in preview["same"].api and '"min_compute_capability": 90' in preview["same"].api
    )
    assert client.post(reverse("ask"), data).status_code == 302
    row = Workload.objects.get(name=f"fed-{kind}")
    assert (row.cpu_milli, row.memory_mib) == (2_500, 64 * GIB)
    assert (row.min_memory_mib, row.min_compute_capability) == (40 * GIB, 90)
    page = client.get(reverse(kind, args=[row.public_id])).content.decode()
    assert "2.5 CPU cores and 64 GiB of memory" in page
    assert "at least 40 GiB of memory, compute capability 9.0 or higher" in page
    again = client.get(f"{reverse('ask')}?kind={kind}&from={row.public_id}").context["form"]
    assert {name: again[name].value() for name in ("cpus", "memory", "min_memory", "min_capability")} == {
        "cpus": "2.5",
        "memory": "64",
        "min_memory": "40",
        "min_capability": "9.0",
    }


def test_the_form_names_the_sizes_of_the_hosts(sized: World) -> None:
    client = signed_in(sized.vision.member)
    text = client.get(reverse("ask")).content.decode()
    assert "Hosts of Shared have 16 to 64 CPU cores and 128 to 1,024 GiB of memory." in text
    assert "Hosts of Vision only have 8 CPU cores and 64 GiB of memory." in text


@pytest.mark.parametrize("value", first_cases(2, ["0", "-1", "0.0001", "1e9", "nan", "1e999999999", "many"]))
def test_an_invalid_size_is_refused_at_its_field(sized: World, value: str) -> None:
    data = ask_data(
        sized, kind="job", name="odd", command="true", count="1", cpus=value, memory=value, hosts="1"
    )
    answer = signed_in(sized.vision.member).post(reverse("ask"), data)
    errors = answer.context["form"].errors
    assert answer.status_code == 400 and "allowed" in errors["cpus"][0]
    assert "allowed" in errors["memory"][0] or value == "0.0001"
    assert not Workload.objects.exists()


def test_a_length_with_a_huge_exponent_is_refused_in_short_form(sized: World) -> None:
    data = ask_data(sized, kind="job", name="odd", command="true", count="1", length="1e999999999", hosts="1")
    errors = signed_in(sized.vision.member).post(reverse("ask"), data).context["form"].errors
    assert "For is 1E+999999999; allowed" in errors["length"][0]


def test_the_form_names_the_available_size_at_the_field(sized: World) -> None:
    data = ask_data(sized, kind="job", name="odd", command="true", count="1", cpus="96", hosts="1")
    errors = signed_in(sized.vision.member).post(reverse("ask"), data).context["form"].errors
    assert "the most that one has is 64 CPU cores" in errors["cpus"][0]


def test_the_api_accepts_returns_and_limits_the_sizes(sized: World) -> None:
    client = APIClient()
    client.force_authenticate(sized.vision.member)
    body = {
        "project": "vision/vision-main",
        "pool": "shared",
        "name": "fed",
        "command": "true",
        "units": 1,
        "models": [H100],
        "cpu_milli": 8_000,
        "memory_mib": 64 * GIB,
    }
    response = client.post("/api/v1/jobs/", body, format="json")
    assert response.status_code == 201
    assert (response.json()["cpu_milli"], response.json()["memory_mib"]) == (8_000, 64 * GIB)
    notebook = {
        "project": "vision/vision-main",
        "pool": "shared",
        "cpu_milli": 1_000,
        "labels_required": {"site": "none"},
    }
    refused = client.post("/api/v1/notebooks/", notebook, format="json")
    assert refused.status_code == 400 and refused.json()["errors"][0]["field"] == "labels_required"
    refused = client.post("/api/v1/jobs/", body | {"cpu_milli": 2**31}, format="json")
    assert refused.status_code == 400 and refused.json()["errors"][0]["field"] == "cpu_milli"
    refused = client.post("/api/v1/jobs/preview/", body | {"memory_mib": "much"}, format="json")
    assert refused.status_code == 400 and refused.json()["errors"][0]["field"] == "memory_mib"


def test_waiting_work_whose_hosts_shrank_names_the_available_size(sized: World) -> None:
    row = queue_job(sized, sized.vision, "waits", cpu_milli=60_000)
    Host.objects.filter(name="alpha").update(cpu_milli=48_000)
    engine.run_cycle("test", sized.now)
    row.refresh_from_db()
    assert row.reason_code == "too_big_for_any_host"
    assert "the most that one has is 48 CPU cores" in reason_texts.waiting_sentence(row)
