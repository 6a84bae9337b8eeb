"""Start Canaille, and sign people in on its pages as their browsers would."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

import requests

from portal.web.people.identity.oidc import callback_url
from tests.self_signed import self_signed_certificate
from tools.paths import CANAILLE_VENV

CLIENT_ID, SECRET, PASSWORD = "gpupool", "a-client-secret", "correct horse battery"
SCOPES = ["openid", "profile", "email", "groups"]
SLUG = "canaille"


class Canaille:
    """A running server. ``trusted`` is the certificate with which its own can be verified; empty: http."""

    def __init__(self, process: subprocess.Popen[str], issuer: str, certificate: str) -> None:
        self.issuer, self.trusted = issuer, Path(certificate).read_text() if certificate else ""
        self._process, self._certificate = process, certificate

    def set_groups(self, person: str, *groups: str) -> None:
        """Make a person a member of exactly these groups."""
        assert _ask(self._process, {"person": person, "groups": list(groups)}) == "done"

    def sign_in(self, address: str, person: str) -> str:
        """Sign in on the server's pages, and return the address to which the server sends the browser."""
        browser = requests.Session()
        browser.trust_env = False
        browser.verify = str(self._certificate) if self.trusted else True
        page = browser.get(address)
        page = browser.post(page.url, data={"login": person})
        page = browser.post(page.url, data={"password": PASSWORD}, allow_redirects=False)
        while page.is_redirect:
            address = urljoin(page.url, page.headers["Location"])
            if not address.startswith(self.issuer):
                parts = urlsplit(address)
                return f"{parts.path}?{parts.query}"
            page = browser.get(address, allow_redirects=False)
        raise AssertionError(f"{page.url} answers {page.status_code}: {page.text[:500]}")


def person(name: str, email: str = "") -> dict[str, Any]:
    """Return a person of the server."""
    return {
        "user_name": name,
        "given_name": name.title(),
        "family_name": "Example",
        "formatted_name": f"{name.title()} Example",
        "emails": [email or f"{name}@example.org"],
        "password": PASSWORD,
    }


@contextmanager
def canaille(
    people: Sequence[dict[str, Any]],
    folder: Path,
    *,
    host: str = "",
    clock_offset: int = 0,
) -> Iterator[Canaille]:
    """Run a server. With ``host`` it speaks TLS with a certificate for this name or address."""
    certificate, key = self_signed_certificate(folder, host) if host else ("", "")
    orders = {
        "certificate": certificate,
        "key": key,
        "clock_offset": clock_offset,
        "people": list(people),
        "clients": [
            {
                "client_id": CLIENT_ID,
                "client_name": "gpupool",
                "client_secret": SECRET,
                "client_uri": "http://127.0.0.1",  # trusted, so that the server does not ask for consent
                "redirect_uris": [callback_url(SLUG)],
                "grant_types": ["authorization_code"],
                "response_types": ["code"],
                "scope": SCOPES,
                "token_endpoint_auth_method": "client_secret_basic",
            }
        ],
    }
    command = [str(CANAILLE_VENV / "bin" / "python"), str(Path(__file__).with_name("canaille_server.py"))]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder, env={"PATH": ""}
    )
    try:
        issuer = _ask(process, orders)
        assert issuer.startswith("http"), "the server did not start"
        yield Canaille(process, issuer, certificate)
    finally:
        process.kill()
        process.communicate()


def _ask(process: subprocess.Popen[str], order: dict[str, Any]) -> str:
    _pipe(process.stdin).write(json.dumps(order) + "\n")
    _pipe(process.stdin).flush()
    return _pipe(process.stdout).readline().strip()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
