"""Serve Canaille, an OpenID Connect server, for the tests. Runs in the environment ``.gpupool/canaille``.

The first line of standard input is a JSON object with ``certificate`` and ``key`` (paths; empty: http),
``people``, ``clients`` and ``clock_offset`` (seconds by which the clock of the server is wrong). The server
prints its address. It then carries out each further line, such as {"person": "ada", "groups": []}, and prints
``done``.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
import threading
import time
from typing import Any

ORDERS = json.loads(sys.stdin.readline())
if ORDERS["clock_offset"]:
    real_time = time.time
    time.time = lambda: real_time() + ORDERS["clock_offset"]

from canaille import create_app  # noqa: E402
from canaille.app import models  # noqa: E402
from canaille.backends import Backend  # noqa: E402
from joserfc.jwk import RSAKey  # noqa: E402
from werkzeug.serving import make_server  # noqa: E402


def serve() -> None:
    """Start the server, print its address, and carry out the orders of standard input."""
    logging.disable(logging.CRITICAL)
    tls = (ORDERS["certificate"], ORDERS["key"]) if ORDERS["certificate"] else None
    server = make_server(
        "127.0.0.1", 0, lambda environ, start: app(environ, start), threaded=True, ssl_context=tls
    )
    address = f"127.0.0.1:{server.server_port}"
    app = create_app(
        {
            "SECRET_KEY": secrets.token_hex(32),
            "SERVER_NAME": address,
            "PREFERRED_URL_SCHEME": "https" if tls else "http",
            "WTF_CSRF_ENABLED": False,
            "CANAILLE": {
                "DATABASE": "memory",
                "FORCE_HTTPS": False,
                "ENABLE_PASSWORD_COMPROMISSION_CHECK": False,
            },
            "CANAILLE_OIDC": {
                "ACTIVE_JWKS": [RSAKey.generate_key(2048, auto_kid=True).as_dict(private=True)]
            },
        }
    )
    with app.app_context():
        for person in ORDERS["people"]:
            Backend.instance.save(models.User(**person))
        for client in ORDERS["clients"]:
            row = models.Client(**client)
            Backend.instance.save(row)
            row.audience = [row]
            Backend.instance.save(row)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"{'https' if tls else 'http'}://{address}", flush=True)
    for line in sys.stdin:
        with app.app_context():
            set_groups(**json.loads(line))
        print("done", flush=True)


def set_groups(person: str, groups: list[str]) -> None:
    """Make a person a member of exactly these groups. A group without members is deleted."""
    user = Backend.instance.get(models.User, user_name=person)
    for group in Backend.instance.query(models.Group):
        remove_member(group, user)
    for name in groups:
        found = Backend.instance.get(models.Group, display_name=name)
        if found is None:
            found = models.Group(display_name=name, members=[user])
        else:
            found.members = [*found.members, user]
        Backend.instance.save(found)


def remove_member(group: Any, user: Any) -> None:
    """Remove a person from a group, and delete the group if it becomes empty."""
    others = [member for member in group.members if member.user_name != user.user_name]
    if not others:
        Backend.instance.delete(group)
    elif len(others) < len(group.members):
        group.members = others
        Backend.instance.save(group)


if __name__ == "__main__":
    serve()
