"""Test in a browser that the sign-in page leads to a provider and back.

The content security policy and the rules for cookies of other sites apply only in a browser.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from portal.services.people.identity import providers
from tests.oidc.running_server import CLIENT_ID, PASSWORD, SCOPES, SECRET, SLUG, canaille, person
from tests.portal.web.test_pages_in_browser import browser, chromium
from tests.world import World, world

__all__ = ["browser", "chromium", "world"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.canaille,
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("pages-in-browser"),
]


def test_a_person_signs_in_with_the_button_and_reaches_the_page_that_they_wanted(
    world: World, live_server: Any, browser: Browser, settings: Any, tmp_path: Path
) -> None:
    settings.GPUPOOL_PORTAL_URL = live_server.url
    with canaille([person("ada")], tmp_path) as server:
        providers.create_provider(
            actor=world.operator,
            name="Example sign-on",
            slug=SLUG,
            issuer=server.issuer,
            client_id=CLIENT_ID,
            secret=SECRET,
            scopes=" ".join(SCOPES),
            username_claim="sub",
            now=world.now,
        )
        page = browser.new_context().new_page()
        page.goto(f"{live_server.url}/ways-to-sign-in/")
        page.get_by_role("button", name="Example sign-on").click()
        page.locator("input[name=login]").fill("ada")
        page.locator("input[name=login]").press("Enter")
        page.locator("input[name=password]").fill(PASSWORD)
        page.locator("input[name=password]").press("Enter")
        page.wait_for_url(f"{live_server.url}/ways-to-sign-in/")
        expect(page.get_by_text("Connected identities")).to_be_visible()
        expect(page.locator("code", has_text="ada").first).to_be_visible()
