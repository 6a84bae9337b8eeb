"""Test the search: the order of its results, the pages that it finds, and who finds people."""

from __future__ import annotations

import pytest
from django.urls import reverse

from portal.models import User
from portal.web.home.searchable_pages import matching_pages
from tests.portal.web.work_samples import queue_job, signed_in
from tests.world import World

pytestmark = pytest.mark.django_db


def found(user: User, words: str) -> list[str]:
    page = signed_in(user).get(reverse("search"), {"q": words}, headers={"HX-Request": "true"})
    return [item.label for item in page.context["items"]]


def test_the_best_match_ranks_first_whatever_its_kind(world: World) -> None:
    for name in ("my-fleet-test", "fleet-2", "old-alphabet", "alpha-run"):
        queue_job(world, world.vision, name)
    assert found(world.operator, "fleet") == ["Fleet", "fleet-2", "my-fleet-test"]
    assert found(world.operator, "alpha") == ["alpha", "alpha-run", "old-alphabet"]


def test_a_match_in_the_name_ranks_before_a_match_in_another_field(world: World) -> None:
    for number in range(8):
        queue_job(world, world.vision, f"other-{number}")  # found by the name of the team
    queue_job(world, world.language, "try-vision", state="ended", outcome="finished")
    names = found(world.operator, "vision")
    assert names.index("try-vision") < names.index("other-7")


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("password", "Change the password"),
        ("passw", "Change the password"),
        ("prices", "Rate card"),
        ("jupyter", "Notebooks"),
        ("users", "People"),
    ],
)
def test_pages_are_found_by_the_words_that_people_use(world: World, words: str, page: str) -> None:
    assert page in found(world.vision.member, words)


@pytest.mark.long
@pytest.mark.parametrize("role", ["stranger", "member", "operator", "finance", "auditor"])
def test_every_page_that_the_search_offers_opens(world: World, role: str) -> None:
    client = signed_in(world.people[role])
    request = client.get(reverse("search"), {"q": "nothing"}).wsgi_request
    pages = matching_pages(request, world.people[role], "")
    assert len(pages) > 15
    for page in pages:
        assert client.get(page.url).status_code == 200, page.label


@pytest.mark.parametrize(("role", "offered"), [("operator", True), ("member", False), ("finance", False)])
def test_a_page_is_offered_only_to_those_who_may_open_it(world: World, role: str, offered: bool) -> None:
    assert ("Add a host" in found(world.people[role], "add a host")) is offered


def test_people_are_found_only_by_those_who_may_open_their_pages(world: World) -> None:
    name = world.language.member.username
    assert name in found(world.operator, name)
    for person in (world.vision.member, world.auditor):
        assert name not in found(person, name)
