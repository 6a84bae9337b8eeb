"""Test that `./run up` prints the code that the first page of a new installation demands."""

from __future__ import annotations

import http.cookiejar
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running_demo import Demo, free_pair

pytestmark = [
    pytest.mark.long,
    pytest.mark.site,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("site"),
]

CODE = re.compile(r"^  ([0-9a-f]{8}(?:-[0-9a-f]{8}){3})$", re.M)


@pytest.fixture
def empty_site(tmp_path: Path) -> Iterator[Demo]:
    root = Path(__file__).resolve().parent.parent.parent
    found = Demo(root, tmp_path / "up", free_pair(), verb="up")
    try:
        found.wait_ready()
        yield found
    finally:
        if found.process.poll() is None:
            found.stop()


def first_run_status(site: Demo, code: str) -> int:
    """Fill in the first page as a stranger would, and return the status of the answer."""
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    page = browser.open(f"{site.url}/first-run/").read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token is not None
    fields = {
        "csrfmiddlewaretoken": token[1],
        "setup_code": code,
        "organisation": "Acme",
        "time_zone": "UTC",
        "currency": "EUR",
        "username": "ada",
        "email": "ada@example.org",
        "password": "correct horse battery staple",
    }
    try:
        answer = browser.open(f"{site.url}/first-run/", urllib.parse.urlencode(fields).encode())
    except urllib.error.HTTPError as refused:
        return refused.code
    return int(answer.status)


def test_only_the_printed_code_creates_the_first_operator(empty_site: Demo) -> None:
    empty_site.wait_for(lambda: CODE.search(empty_site.output.read_text()) is not None, 60)
    code = CODE.search(empty_site.output.read_text())
    assert code is not None
    assert first_run_status(empty_site, "00000000-00000000-00000000-00000000") == 400
    assert first_run_status(empty_site, code[1]) == 200
    logs = "".join(path.read_text() for path in (empty_site.folder / "logs").glob("*.log"))
    assert code[1] not in logs
