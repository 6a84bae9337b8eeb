"""Test passkeys in Chromium with its virtual authenticator."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from allauth.mfa.models import Authenticator
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django.plugin import DjangoDbBlocker

from portal.models import AuditEvent, User
from tests.waiting import PAGE_MILLISECONDS
from tests.world import PASSWORD, SHARED_WORLD, World

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("passkeys-in-browser"),
]


@pytest.fixture(scope="module")
def chromium(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Browser]:
    """Start Chromium once for these tests. Django must allow ORM calls in the thread of Playwright."""
    with django_db_blocker.unblock():
        SHARED_WORLD.close()
    program = next(
        path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))
    )
    expect.set_options(timeout=PAGE_MILLISECONDS)
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def portal(live_server: Any, settings: Any) -> str:
    """Return the URL of the portal. A passkey needs a host name, so the URL has localhost."""
    url = f"http://localhost:{urlsplit(live_server.url).port}"
    settings.GPUPOOL_PORTAL_URL = url
    settings.MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = True
    settings.ALLOWED_HOSTS = ["localhost"]
    return url


def page_with_authenticator(browser: Browser) -> Page:
    """Return a page of a new browser context whose device keeps passkeys and knows the person."""
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    tools = page.context.new_cdp_session(page)
    tools.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    tools.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    return page


def enter_password(page: Page, portal: str, username: str) -> None:
    page.goto(f"{portal}/accounts/login/")
    page.fill("input[name=login]", username)
    page.fill("input[name=password]", PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()


def sign_out(page: Page, portal: str) -> None:
    page.goto(f"{portal}/accounts/logout/")
    page.locator("main form button").first.click()
    page.wait_for_url("**/accounts/login/**")


def test_a_passkey_is_the_second_factor_signs_in_alone_and_proves_the_identity(
    world: World, portal: str, chromium: Browser
) -> None:
    person, page = User.objects.get(pk=world.operator.pk), page_with_authenticator(chromium)
    enter_password(page, portal, person.username)
    expect(page.get_by_role("link", name="Account")).to_be_visible()
    page.goto(f"{portal}/account/")
    page.locator("#second-factor").get_by_role("link", name="Passkey").click()
    page.fill("input[name=password]", PASSWORD)
    page.get_by_role("button", name="Continue").click()
    page.fill("input[name=name]", "desk key")
    page.click("#mfa_webauthn_add")
    expect(page.get_by_text("recovery codes", exact=False).first).to_be_visible()
    kinds = Authenticator.objects.filter(user=person).values_list("type", flat=True)
    assert set(kinds) == {"webauthn", "recovery_codes"}
    page.goto(f"{portal}/account/")
    expect(page.locator("#second-factor")).to_contain_text("desk key")

    # As a second factor, after the password.
    sign_out(page, portal)
    enter_password(page, portal, person.username)
    page.wait_for_url("**/accounts/2fa/authenticate/")
    page.click("#mfa_webauthn_authenticate")
    expect(page.get_by_role("link", name="Account")).to_be_visible()

    # Alone.
    sign_out(page, portal)
    page.click("#passkey_login")
    expect(page.get_by_role("link", name="Account")).to_be_visible()
    methods = [
        (event.after or {})["method"] for event in AuditEvent.objects.filter(verb="sign_in").order_by("pk")
    ]
    assert methods == ["password", "password, webauthn", "webauthn"]

    # As a proof of identity, which the password is no longer.
    page.goto(f"{portal}/accounts/reauthenticate/?next=/account/")
    page.click("#mfa_webauthn_reauthenticate")
    page.wait_for_url("**/account/")
    page.context.close()
