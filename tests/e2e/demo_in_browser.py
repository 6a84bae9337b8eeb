"""Show a demo to people, each with their own browser context."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    APIRequest,
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from tests.running_demo import Demo, free_pair
from tests.waiting import PAGE_MILLISECONDS

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# htmx logs these errors if the page is left during a refresh. A refresh that fails logs other errors.
ABORTED_REFRESHES = ("htmx:afterRequest,", "htmx:sendAbort,")
REFUSED = "Failed to load resource: the server responded with a status of 400 (Bad Request)"
SERIOUS = ("serious", "critical")


class Person:
    """A person with their own browser context."""

    def __init__(self, browser: Browser, demo: Demo, username: str) -> None:
        self.demo, self.username = demo, username
        self.context: BrowserContext = browser.new_context(
            viewport={"width": 1280, "height": 900}, timezone_id="Europe/Berlin"
        )
        self.page: Page = self.context.new_page()
        self.other_hosts: list[str] = []
        self.errors: list[str] = []
        self.context.on("request", lambda request: self._note_request(request.url))
        self.context.on("weberror", lambda error: self.errors.append(str(error.error)))
        self.context.on("console", self._note_console_message)
        self.page.goto(f"{demo.url}/accounts/login/")
        self.page.fill("input[name=login]", username)
        self.page.fill("input[name=password]", demo.sign_ins()[username])
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("heading", level=1)).not_to_have_text("Sign in")

    def _note_console_message(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(ABORTED_REFRESHES):
            self.errors.append(f"{message.text} ({message.location.get('url')})")

    def _note_request(self, url: str) -> None:
        parts = urlsplit(url)
        own = {self.demo.port, self.demo.port + 1}
        if parts.scheme in ("http", "https", "ws", "wss") and (
            parts.port not in own
            or not (parts.hostname == "127.0.0.1" or (parts.hostname or "").endswith(".localhost"))
        ):
            self.other_hosts.append(url)

    def go(self, path: str) -> Page:
        answer = self.page.goto(self.demo.url + path)
        assert answer is not None and answer.status == 200, f"{path}: {answer and answer.status}"
        return self.page

    def assert_form_was_rejected(self) -> None:
        """Assert that the last form was rejected and that the console shows this error only."""
        assert [re.sub(r" \(http.*", "", error) for error in self.errors] == [REFUSED]
        self.errors.clear()

    def check(self) -> None:
        """Assert that the page is accessible, requests only its own hosts and has no error."""
        self.page.wait_for_load_state()
        results = Axe().run(self.page)
        violations = [v for v in results.response["violations"] if v["impact"] in SERIOUS]
        where = [f"{v['id']}: {[node['target'] for node in v['nodes']][:3]}" for v in violations]
        assert not violations, f"{self.page.url}: {where}"
        assert self.other_hosts == []
        assert self.errors == []


class Story:
    """The demo, its people, and facts that later steps need."""

    def __init__(self, demo: Demo, browser: Browser, requests: APIRequest) -> None:
        self.demo, self.browser, self.requests = demo, browser, requests
        self.people: dict[str, Person] = {}
        self.facts: dict[str, Any] = {}

    def __getitem__(self, username: str) -> Person:
        if username not in self.people:
            self.people[username] = Person(self.browser, self.demo, username)
        return self.people[username]


@contextmanager
def running_story(folder: Path, history: bool = False) -> Iterator[Story]:
    """Run a demo with its state in ``folder``, and a browser, during the block."""
    demo = Demo(ROOT, folder, free_pair(), history)
    try:
        demo.wait_ready()
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        expect.set_options(timeout=PAGE_MILLISECONDS)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            yield Story(demo, browser, playwright.request)
            browser.close()
    finally:
        if demo.process.poll() is None:
            demo.stop()


def eventually(condition: Callable[[], bool], seconds: float, expectation: str) -> None:
    """Wait until the condition is true. Fail after ``seconds`` with the expectation."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {expectation}"
        time.sleep(0.5)
