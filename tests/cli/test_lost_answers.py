"""Test that the command line repeats a request whose answer was lost, and that it is carried out once."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from cli import client
from portal.models import User
from scheduler.models import Workload
from tests.cli.conftest import Gpupool
from tests.world import World

SignIn = Callable[[User], str]
SUBMIT = ("job", "run", "--pool", "shared", "--gpus", "1", "--", "true")


class LossyProxy:
    """A proxy on loopback that drops the answers of the next ``losses`` POST requests."""

    def __init__(self, portal: str) -> None:
        self.losses = 0
        self.keys: list[str | None] = []
        self.hidden_headers: frozenset[str] = frozenset()
        proxy = self

        class ForwardingHandler(BaseHTTPRequestHandler):
            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                link = http.client.HTTPConnection(urlsplit(portal).netloc)
                headers = {
                    name: value for name, value in self.headers.items() if name not in ("Host", "Connection")
                }
                link.request(self.command, self.path, body, headers)
                answer = link.getresponse()
                text = answer.read()
                link.close()
                if self.command == "POST":
                    proxy.keys.append(self.headers.get("Idempotency-Key"))
                    if proxy.losses:
                        proxy.losses -= 1
                        self.close_connection = True
                        return
                self.send_response(answer.status)
                for name in ("Content-Type", client.KEY_LIFETIME):
                    if answer.headers.get(name) and name not in proxy.hidden_headers:
                        self.send_header(name, answer.headers[name])
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = forward

            def log_message(self, *args: Any) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), ForwardingHandler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def proxy(live_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[LossyProxy]:
    monkeypatch.setattr(client, "REPEAT_WAIT_SECONDS", (0.0, 0.0))
    made = LossyProxy(live_server.url)
    yield made
    made.close()


def test_a_job_whose_answer_was_lost_is_submitted_again_with_the_same_key_and_exists_once(
    gpupool: Gpupool, sign_in: SignIn, served_world: World, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(served_world.vision.member)
    monkeypatch.setenv("GPUPOOL_URL", proxy.url)
    proxy.losses = 2
    done = gpupool(*SUBMIT)
    assert done.code == 0, done.err
    assert len(proxy.keys) == 3 and len(set(proxy.keys)) == 1 and proxy.keys[0]
    assert str(Workload.objects.get().public_id)[:8] in done.out
    proxy.losses = 3
    assert gpupool(*SUBMIT).code == 5
    assert Workload.objects.count() == 2 and len(set(proxy.keys)) == 2

    # A portal that does not know the keys would create a second job.
    proxy.hidden_headers, proxy.losses = frozenset({client.KEY_LIFETIME}), 1
    failed = gpupool(*SUBMIT)
    assert failed.code == 5 and "does not answer" in failed.err
    assert Workload.objects.count() == 3 and len(proxy.keys) == 7
