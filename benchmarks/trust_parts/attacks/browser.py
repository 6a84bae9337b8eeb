"""Send requests as a browser or a program does, and also requests that no browser would send."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass, field
from email.message import Message
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

from benchmarks.trust_parts.attacks.registry import ControlFailed

SECONDS = 30.0


@dataclass(frozen=True)
class HttpAnswer:
    """The answer to one request."""

    status: int
    headers: Message
    text: str

    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def location(self) -> str:
        return str(self.headers.get("Location", ""))


@dataclass
class Browser:
    """A client with its own cookies. ``host`` is sent as the Host header."""

    port: int
    host: str = ""
    cookies: dict[str, str] = field(default_factory=dict)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> HttpAnswer:
        """Send one request on a new connection. The path is sent exactly as given."""
        own = {"Host": self.host or f"127.0.0.1:{self.port}", "Accept": "text/html, application/json"}
        if self.cookies:
            own["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {**own, **(headers or {})}.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        finally:
            connection.close()
        for line in response.headers.get_all("Set-Cookie", []):
            for name, morsel in SimpleCookie(line).items():
                if morsel["max-age"] == "0" or not morsel.value:
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value
        return HttpAnswer(response.status, response.headers, text)

    def get(self, path: str, **headers: str) -> HttpAnswer:
        return self.ask("GET", path, headers=_header_names(headers))

    def form(self, path: str, fields: dict[str, Any], **headers: str) -> HttpAnswer:
        """Send a form with the CSRF token of the cookie."""
        token = next((value for name, value in self.cookies.items() if name.endswith("csrf")), "")
        body = urlencode({"csrfmiddlewaretoken": token, **fields}, doseq=True).encode()
        own = {"Content-Type": "application/x-www-form-urlencoded", **_header_names(headers)}
        return self.ask("POST", path, body, own)

    def sign_in(
        self, login: str, password: str, path: str = "/accounts/login/", **headers: str
    ) -> HttpAnswer:
        """Send the form of the sign-in page. A status of 302 means that the person is signed in."""
        self.get(path)
        return self.form(path, {"login": login, "password": password}, **headers)

    def is_signed_in(self) -> bool:
        return self.get("/api/v1/me/").status == 200


@dataclass
class Program:
    """A client of the API with a token."""

    port: int
    token: str

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> HttpAnswer:
        own = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        return Browser(self.port).ask(method, f"/api/v1/{path}", data, {**own, **_header_names(headers)})

    def get(self, path: str, **headers: str) -> HttpAnswer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> HttpAnswer:
        return self.ask("POST", path, {} if body is None else body, **headers)

    def made(self, path: str, body: Any) -> Any:
        """Create an object, and return it. Raises ControlFailed if the API refuses it."""
        answer = self.post(path, body)
        if answer.status not in (200, 201, 202):
            raise ControlFailed(f"POST {path} answers {answer.status}: {answer.text[:300]}")
        return answer.json()


def send_raw(port: int, request: bytes) -> bytes:
    """Send bytes to a port, and return what comes back until the server closes or one second is silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(request)
        connection.settimeout(1.0)
        received = b""
        try:
            while piece := connection.recv(65536):
                received += piece
        except (TimeoutError, ConnectionError):
            pass  # the server keeps the connection open, or has reset it: both end the answer
        return received


def _header_names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
