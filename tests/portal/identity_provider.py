"""Provide a small OpenID Connect provider in this process, whose answers a test can break.

A real server is used for all that it can do: see ``tests/oidc/``. This provider has no pages: ``answer``
plays the part of the person who signs in there.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote_plus, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

CLIENT_ID, SECRET = "gpupool", "a client secret"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
KEY_ID = "key-1"


class SmallProvider:
    """A provider. A test changes ``claims``, ``discovery``, ``header`` and ``algorithm`` to break answers."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        self.userinfo: dict[str, Any] | None = None
        self.discovery: dict[str, Any] = {}
        self.token_answer: Callable[[dict[str, Any]], Any] = lambda answer: answer
        self.sign: Callable[[dict[str, Any]], str] = lambda claims: jwt.encode(
            claims, KEY, algorithm="RS256", headers={"kid": KEY_ID}
        )
        self.codes: dict[str, dict[str, str]] = {}
        self.token_requests: list[dict[str, str]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send(*owner.get(self.path))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                given = dict(parse_qsl(body))
                basic = self.headers.get("Authorization", "")
                if basic.startswith("Basic "):
                    names = map(unquote_plus, base64.b64decode(basic[6:]).decode().split(":", 1))
                    given |= dict(zip(("client_id", "client_secret"), names, strict=True))
                self.send(*owner.token(given))

            def send(self, status: int, value: Any) -> None:
                body = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Write no log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_address[1]}"

    def get(self, path: str) -> tuple[int, Any]:
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "userinfo_endpoint": f"{self.issuer}/userinfo",
                **self.discovery,
            }
        if path == "/keys":
            public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
            return 200, {"keys": [{**public, "kid": KEY_ID, "use": "sig", "alg": "RS256"}]}
        if path == "/userinfo":
            return 200, self.userinfo if self.userinfo is not None else {"sub": self.claims["sub"]}
        return 404, {}

    def token(self, given: dict[str, str]) -> tuple[int, Any]:
        self.token_requests.append(given)
        known = self.codes.pop(given.get("code", ""), None)
        digest = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if known is None or known["code_challenge"] != challenge:
            return 400, {"error": "invalid_grant"}
        if (given.get("client_id"), given.get("client_secret")) != (CLIENT_ID, SECRET):
            return 401, {"error": "invalid_client"}
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": known["nonce"]}
        answer = {
            "access_token": "x",
            "token_type": "Bearer",
            "id_token": self.sign({**claims, **self.claims}),
        }
        return 200, self.token_answer(answer)

    def answer(
        self, browser: Client, slug: str = "corp", process: str = "login", **changes: str
    ) -> HttpResponse:
        """Sign in with this provider in a browser, and return the portal's answer to the code."""
        return browser.get(self.callback(browser, slug, process, **changes))  # type: ignore[return-value]

    def callback(self, browser: Client, slug: str = "corp", process: str = "login", **changes: str) -> str:
        """Begin a sign-in, and return the address to which the provider would send the browser."""
        wanted = authorization_request(browser, slug, process)
        code = secrets.token_urlsafe(8)
        self.codes[code] = wanted
        given = {"code": code, "state": wanted["state"], **changes}
        return f"{urlsplit(wanted['redirect_uri']).path}?{urlencode(given)}"


def authorization_address(browser: Client, slug: str, process: str = "login") -> str:
    """Begin a sign-in, and return the address of the provider's page that the portal opens."""
    page = browser.post(reverse("openid_connect_login", args=[slug]), {"process": process}).content.decode()
    found = re.search(r'content="0; url=([^"]+)"', page)
    assert found, page
    return html.unescape(found[1])


def authorization_request(browser: Client, slug: str, process: str = "login") -> dict[str, str]:
    """Begin a sign-in, and return the parameters with which the provider's page is opened."""
    query = parse_qs(urlsplit(authorization_address(browser, slug, process)).query)
    return {name: values[0] for name, values in query.items()}


@contextmanager
def small_provider() -> Iterator[SmallProvider]:
    """Serve a small provider while the context is open."""
    provider = SmallProvider()
    thread = threading.Thread(
        target=provider.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
        thread.join()
