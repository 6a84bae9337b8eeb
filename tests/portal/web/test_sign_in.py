"""Test the wording of the sign-in page."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from tests.world import World

pytestmark = pytest.mark.django_db


def test_the_page_asks_for_a_user_name_and_says_if_the_account_is_unknown(world: World) -> None:
    client, address = Client(), reverse("account_login")
    page = client.get(address).content.decode()
    assert "User name or e-mail address" in page and ">Login<" not in page and "placeholder" not in page
    for name in (world.vision.member.username, "nobody", "nobody@example.org"):
        answer = client.post(address, {"login": name, "password": "wrong"}).content.decode()
        assert "Nobody has this user name or e-mail address with this password." in answer
