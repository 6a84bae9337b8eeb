"""Attack the edge as a host: join tokens, credentials, connections and streams."""

from __future__ import annotations

import json
import secrets
import uuid
from pathlib import Path
from typing import Any

from agent.protocol import VERSION
from benchmarks.trust_parts.attacks.browser import Browser, HttpAnswer, send_raw
from benchmarks.trust_parts.attacks.registry import attack, control, defended
from benchmarks.trust_parts.attacks.target import AttackTarget
from benchmarks.trust_parts.attacks.workspaces import UPGRADE


def _new_host(target: AttackTarget) -> tuple[str, str]:
    """Add a host and return its name and its join token."""
    name = f"host-{secrets.token_hex(4)}"
    made = target.operator.program.made("hosts/", {"pool": "faults", "name": name})
    return name, str(made["token"])


def _join(target: AttackTarget, host: str, token: str, **more: Any) -> HttpAnswer:
    body = {"version": VERSION, "token": token, "host": host, "instance": uuid.uuid4().hex}
    data = json.dumps({**body, "boot_id": str(uuid.uuid4()), **more}).encode()
    headers = {"Content-Type": "application/json"}
    return Browser(target.edge_port).ask("POST", "/agent/v1/join", data, headers)


def _connects(target: AttackTarget, credential: str, path: str = "/agent/v1/sync") -> int:
    """Return the status of an agent's connection."""
    headers = {**UPGRADE, "Authorization": f"Bearer {credential}"} if credential else dict(UPGRADE)
    return Browser(target.edge_port).ask("GET", path, None, headers).status


@attack("join tokens that are guessed")
def guessed_join_token(target: AttackTarget) -> None:
    host, token = _new_host(target)
    for text in ("", "guess", token[:-1], token + "x", token.swapcase(), "\x00", "x" * 10_000):
        status = _join(target, host, text).status
        defended(400 <= status < 500, f"{text[:20]!r} is answered with {status}")
    control(_join(target, host, token).status == 200, "the token itself works")


@attack("a join token that is used twice")
def join_token_used_twice(target: AttackTarget) -> None:
    host, token = _new_host(target)
    control(_join(target, host, token).status == 200, "the token works once")
    status = _join(target, host, token).status
    defended(400 <= status < 500, f"the second join is answered with {status}")


@attack("a join token for another host")
def join_token_of_another_host(target: AttackTarget) -> None:
    _, token = _new_host(target)
    status = _join(target, "host-1", token).status
    defended(400 <= status < 500, f"it is answered with {status}")


@attack("an earlier join token after a newer one was made")
def earlier_join_token(target: AttackTarget) -> None:
    host, token = _new_host(target)
    target.operator.program.made(f"hosts/{host}/join-token/", {})
    status = _join(target, host, token).status
    defended(400 <= status < 500, f"it is answered with {status}")


@attack("a join token in the arguments of a process")
def join_token_in_arguments(target: AttackTarget) -> None:
    arguments = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments += path.read_bytes()
        except OSError:
            continue  # the process has ended
    control(b"--join-token-file" in arguments, "agents of the site run")
    for host in target.site.hosts:
        defended(host.token.encode() not in arguments, f"the token of {host.name} is readable")


@attack("an agent's connection without a credential, or with an invented one")
def invented_credential(target: AttackTarget) -> None:
    for credential in ("", "guess", "x" * 400, target.member.program.token, target.site.hosts[0].token):
        for path in ("/agent/v1/sync", "/agent/v1/stream"):
            status = _connects(target, credential, path)
            defended(status == 401, f"{credential[:12]!r} at {path} is answered with {status}")


@attack("the credential of a revoked host")
def revoked_credential(target: AttackTarget) -> None:
    host, token = _new_host(target)
    credential = str(_join(target, host, token).json()["credential"])
    control(_connects(target, credential) == 101, "the credential works before")
    target.operator.program.made(f"hosts/{host}/revoke/", {"why": "stolen"})
    status = _connects(target, credential)
    defended(status in (401, 403), f"it is answered with {status}")


@attack("a credential as a token of the API, and a token as a credential")
def credential_at_the_api(target: AttackTarget) -> None:
    host, token = _new_host(target)
    credential = str(_join(target, host, token).json()["credential"])
    answer = Browser(target.site.port).get("/api/v1/me/", Authorization=f"Bearer {credential}")
    defended(answer.status == 401, f"the API answers {answer.status}")


@attack("a copied credential that offers connections for workspaces")
def copied_credential_offers_streams(target: AttackTarget) -> None:
    paths = target.identity_files()
    control(paths, "the agents have credentials")
    credential = json.loads(paths[0].read_text())["credential"]
    for key in ("", "X-Gpupool-Stream-Key: guessed\r\n"):
        lines = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
        request = (
            f"GET /agent/v1/stream HTTP/1.1\r\nHost: 127.0.0.1:{target.edge_port}\r\n"
            f"Authorization: Bearer {credential}\r\n{key}{lines}\r\n"
        )
        answer = send_raw(target.edge_port, request.encode())
        control(b" 101 " in answer, f"the credential is known: {answer[:100]!r}")
        defended(b"only the connected agent" in answer, "a stream without the key is accepted")


@attack("broken bodies of join requests")
def broken_join_requests(target: AttackTarget) -> None:
    edge = Browser(target.edge_port)
    for body in (b"", b"{", b"[]", b"null", b'{"version": 10e400}', b"[" * 5000, b"\xff" * 100):
        answer = edge.ask("POST", "/agent/v1/join", body, {"Content-Type": "application/json"})
        defended(400 <= answer.status < 500, f"{body[:20]!r} is answered with {answer.status}")
    host, token = _new_host(target)
    defended(_join(target, host, token, version=-1).status in (400, 403, 409, 426), "another version joins")


@attack("agents' paths under the name of a workspace")
def agents_path_at_a_workspace(target: AttackTarget) -> None:
    link = target.entry_link(target.signed_in(target.member))
    browser = Browser(target.edge_port, link.netloc)
    answer = browser.ask("POST", "/agent/v1/join", b"{}", {"Content-Type": "application/json"})
    defended(answer.status in (403, 404, 421), f"it is answered with {answer.status}")
