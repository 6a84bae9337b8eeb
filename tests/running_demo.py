"""Start a complete site for tests with `./run demo` or `./run up`, in its own folder and on its own ports."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any


def free_pair() -> int:
    """Return a free port P such that P + 1 is also free, below the port range of outgoing connections."""
    for _ in range(200):
        port = random.randrange(20_000, 30_000, 2)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two consecutive free ports")


class Demo:
    """A running `./run demo`, or with ``verb`` a running `./run up`."""

    def __init__(
        self, root: Path, folder: Path, port: int, history: bool = False, verb: str = "demo"
    ) -> None:
        self.root, self.folder, self.port = root, folder, port
        self.url = f"http://127.0.0.1:{port}"
        self.output = folder.parent / "demo.out"
        with self.output.open("wb") as out:
            no_past = ["--no-history"] if verb == "demo" and not history else []
            options = ["--state", str(folder), "--port", str(port), *no_past]
            self.process = subprocess.Popen(
                [sys.executable, str(root / "run"), verb, *options],
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.endswith("_URL")},
            )

    def wait_ready(self, seconds: float = 390) -> None:
        self.wait_for(lambda: "is ready" in self.output.read_text(), seconds)

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text() + json.dumps(self.status())
            time.sleep(0.1)

    def status(self) -> dict[str, Any]:
        completed = subprocess.run(
            [sys.executable, str(self.root / "run"), "status", "--json", "--state", str(self.folder)],
            capture_output=True,
            text=True,
        )
        status: dict[str, Any] = json.loads(completed.stdout)
        return status

    def answers(self, path: str) -> bool:
        """Return True if a GET of the path returns 200."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def sign_ins(self) -> dict[str, str]:
        """Return the password of each user name."""
        organisation = json.loads((self.folder / "organisation.json").read_text())
        return {entry["username"]: entry["password"] for entry in organisation["sign_ins"]}

    def stop(self) -> int:
        """Interrupt the demo and return its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(90)
