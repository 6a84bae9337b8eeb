"""Test changes of a GPU's MIG geometry: the page, the API, the CLI's syntax, permissions and messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.urls import reverse

from agent.gpu.simulated_models import mig_profiles_of
from agent.protocol import GeometrySeen
from portal.errors import Invalid
from portal.models import AuditEvent, Notification
from portal.notices import delivery
from portal.services.fleet.mig_geometry import parse_geometry
from portal.wording.notices import notice_texts
from scheduler.models import GeometryChange, Gpu, Reservation
from scheduler.sync import geometry_changes
from tests.fakes import FakeAgent
from tests.portal.web.work_samples import reserve, run_job, signed_in
from tests.seeds import first_cases
from tests.world import H100, World, world_fixture

pytestmark = pytest.mark.django_db
ADDRESS = "/hosts/alpha/gpus/1/geometry/"


def write_alpha(world: World) -> FakeAgent:
    """Return the agent of alpha, on a host whose GPUs can be split."""
    agent = FakeAgent.of(world.hosts["alpha"])
    agent.inventory = replace(agent.inventory, mig_profiles={H100: mig_profiles_of(H100)})
    agent.sync(world.now)
    return agent


alpha = world_fixture(write_alpha)


def gpu(world: World, index: int = 1) -> Gpu:
    return Gpu.objects.get(host=world.hosts["alpha"], index=index)


def host_page(world: World) -> str:
    return signed_in(world.operator).get(reverse("host", args=["alpha"])).content.decode()


def test_an_operator_sees_affected_work_and_its_deadline_before_the_change(
    world: World, alpha: FakeAgent
) -> None:
    client = signed_in(world.operator)
    run_job(world, world.vision, "storm", host="alpha", gpus=[1])
    page = client.get(ADDRESS).content.decode()
    assert "one whole GPU" in page and "3g.40gb" in page and "at most 2" in page and "Effects" not in page
    page = client.get(ADDRESS, {"choose": "1", "n-3g.40gb": "1", "n-1g.10gb": "4"}).content.decode()
    assert "Effects" in page and "storm" in page and "Ends at the latest" in page
    assert "1x3g.40gb+4x1g.10gb" in page and GeometryChange.objects.count() == 0
    response = client.post(
        ADDRESS, {"geometry": "1x3g.40gb+4x1g.10gb", "why": "small notebooks"}, follow=True
    )
    assert "gets no new work" in response.content.decode()
    row = GeometryChange.objects.get()
    assert (row.state, sorted(row.profiles)) == ("draining", ["1g.10gb"] * 4 + ["3g.40gb"])
    assert "becomes 1x3g.40gb+4x1g.10gb when it is free" in host_page(world)
    entry = AuditEvent.objects.get(verb="change_geometry")
    assert (entry.why, entry.after["geometry"]) == ("small notebooks", "1x3g.40gb+4x1g.10gb")


def test_a_change_is_withdrawn_from_the_page_of_the_host(world: World, alpha: FakeAgent) -> None:
    client = signed_in(world.operator)
    client.post(ADDRESS, {"geometry": "2x3g.40gb"})
    fields = {"verb": "withdraw-geometry", "gpu": "1"}
    page = client.post(reverse("host-repair", args=["alpha"]), fields, follow=True).content.decode()
    assert "GPU 1 stays as it is" in page and gpu(world).repair_state == "well"
    assert AuditEvent.objects.filter(verb="withdraw_geometry").exists()


def test_a_failed_change_is_shown_with_its_reason_and_can_be_retried(world: World, alpha: FakeAgent) -> None:
    client = signed_in(world.operator)
    client.post(ADDRESS, {"geometry": "2x3g.40gb"})
    geometry_changes.sweep_geometry_changes(world.now)
    row = GeometryChange.objects.get()
    seen = [GeometrySeen(str(row.public_id), "failed", "a process still uses the GPU")]
    alpha.sync(world.now, replace(alpha.observed(), geometries=seen))
    assert "2x3g.40gb failed: a process still uses the GPU" in host_page(world)
    page = client.get(ADDRESS).content.decode()
    assert "Why it failed" in page and "Try again below" in page
    assert client.post(ADDRESS, {"geometry": "2x3g.40gb"}).status_code == 302
    delivery.write_notices(world.now)
    (notice,) = Notification.objects.filter(user=world.operator)
    assert notice_texts.notice_sentence(notice.kind, notice.numbers) == (
        "GPU 1 of alpha could not become 2x3g.40gb: a process still uses the GPU. "
        "It is in service with its old geometry."
    )


@pytest.mark.parametrize(
    ("geometry", "message"),
    first_cases(
        2,
        [
            ("3x3g.40gb", "3g.40gb is requested 3 times; at most 2 fit"),
            ("1x9g.90gb", "9g.90gb is not a MIG profile of this GPU; allowed: 1g.10gb"),
            ("2x3g.40gb+1x1g.10gb", "the profiles do not fit together"),
            ("1x4g.40gb+1x3g.40gb+1x1g.10gb", "8 compute slices, and the GPU has 7"),
            ("whole", "is one whole GPU already"),
            ("halves", "allowed: whole, or COUNTxPROFILE"),
            ("9" * 400, "allowed: whole, or COUNTxPROFILE"),
        ],
    ),
)
def test_an_impossible_geometry_is_refused_by_the_page_and_the_api(
    world: World, alpha: FakeAgent, geometry: str, message: str
) -> None:
    client = signed_in(world.operator)
    page = client.get(ADDRESS, {"geometry": geometry})
    assert page.status_code == 200 and message in page.content.decode().replace("&#x27;", "'")
    body = {"gpu": 1, "geometry": geometry[:300]}
    for address in ("geometry/", "geometry/preview/"):
        answer = client.post(f"/api/v1/hosts/alpha/{address}", body, content_type="application/json")
        assert answer.status_code in (400, 409) and message in answer.content.decode()
    assert GeometryChange.objects.count() == 0


def test_a_gpu_without_mig_and_a_static_pool_are_refused_with_the_reason(
    world: World, alpha: FakeAgent
) -> None:
    client = signed_in(world.operator)
    page = client.get("/hosts/beta/gpus/0/geometry/", {"geometry": "2x3g.40gb"}).content.decode()
    assert "Its geometry can&#x27;t be changed" in page or "Its geometry can't be changed" in page
    assert "it has no MIG" in page.replace("&#x27;", "'")
    assert "is a static pool" in client.get("/hosts/delta/gpus/0/geometry/").content.decode()
    assert client.get("/hosts/alpha/gpus/99/geometry/").status_code == 404


def test_the_api_shows_previews_applies_and_withdraws_changes(world: World, alpha: FakeAgent) -> None:
    client = signed_in(world.operator)
    rows = client.get("/api/v1/hosts/alpha/geometry/").json()
    assert rows[1]["geometry"] == "whole" and rows[1]["last_change"] is None
    assert {"name": "3g.40gb", "slices": 3, "memory_mib": 38912, "most": 2} in rows[1]["profiles"]
    body = {"gpu": 1, "geometry": "7x1g.10gb"}
    effect = client.post(
        "/api/v1/hosts/alpha/geometry/preview/", body, content_type="application/json"
    ).json()
    assert effect == {
        "gpu": 1,
        "before": "",
        "after": "7x1g.10gb",
        "work": [],
        "reservations": 0,
        "unkept": [],
        "free_by": None,
    }
    response = client.post("/api/v1/hosts/alpha/geometry/", body, content_type="application/json")
    assert (response.status_code, response.json()["state"], response.json()["before"]) == (
        202,
        "draining",
        "whole",
    )
    taken = client.post("/api/v1/hosts/alpha/geometry/withdraw/", {"gpu": 1}, content_type="application/json")
    assert taken.json()["state"] == "withdrawn"
    assert client.get("/api/v1/hosts/alpha/geometry/").json()[1]["last_change"]["state"] == "withdrawn"


def test_a_gpu_whose_geometry_changes_cannot_be_returned_by_hand(world: World, alpha: FakeAgent) -> None:
    client = signed_in(world.operator)
    client.post(ADDRESS, {"geometry": "2x3g.40gb"})
    answer = client.post("/api/v1/hosts/alpha/return-gpu/", {"gpu": 1}, content_type="application/json")
    assert answer.status_code == 409 and "withdraw the change instead" in answer.content.decode()


@pytest.mark.parametrize(
    ("text", "profiles"),
    [
        ("whole", []),
        ("2x3g.40gb", ["3g.40gb"] * 2),
        ("1x1g.10gb+1x1g.10gb+me", ["1g.10gb", "1g.10gb+me"]),
    ],
)
def test_a_geometry_is_written_as_counts_of_profiles(text: str, profiles: list[str]) -> None:
    assert parse_geometry(text) == profiles


@pytest.mark.parametrize(
    "text",
    first_cases(
        3, ["", "x", "0x1g.10gb", "100x1g.10gb", "1x", "1x1g.10gb+", "+1x1g.10gb", None, 7, "1x1g.10gb+ me"]
    ),
)
def test_an_invalid_geometry_is_refused(text: object) -> None:
    with pytest.raises(Invalid, match="geometry is"):
        parse_geometry(text)


def test_the_preview_names_reservations_that_could_not_be_kept(world: World, alpha: FakeAgent) -> None:
    """Reserve all GPUs of both H100 hosts for tomorrow.

    Without this GPU, only one of the two reservations can be served.
    """
    reserve(world, world.vision, "one of them", hours=24, length=2, units=8)
    reserve(world, world.vision, "all of them", hours=24, length=2, units=8)
    page = signed_in(world.operator).get(ADDRESS, {"geometry": "2x3g.40gb"}).content.decode()
    assert "Can't be served without it" in page and "all of them" in page
    Reservation.objects.all().delete()
    reserve(world, world.vision, "one of them", hours=24, length=2, units=8)
    page = signed_in(world.operator).get(ADDRESS, {"geometry": "2x3g.40gb"}).content.decode()
    assert "Can't be served without it" not in page
