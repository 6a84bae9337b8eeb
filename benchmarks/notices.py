"""Measure how notices arrive by mail while the mail server is away and a worker is killed.

    ./run bench notices --json

Work of 50 people ends for three minutes. Each person has a mail channel. A minute after the begin, the
mail server is stopped for ``--outage`` seconds. Afterwards the worker that sends is killed once. Celery's
beat and worker run as in production. ``delay_p95_s`` is the time from the end of a workload to the arrival
of its mail.
"""

from __future__ import annotations

import argparse
import collections
import email
import os
import signal
import socketserver
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import BufferedIOBase
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

SERVICES = ("postgres", "valkey")
PEOPLE = 50
GPUS = 64
BEAT = ("celery", "-A", "config.celery", "beat", "-l", "warning")
WORKER = ("celery", "-A", "config.celery", "worker", "--without-gossip", "--without-mingle", "-l", "info")
MAX_WAIT_SECONDS = 300.0


class Mailbox:
    """An SMTP server on loopback that counts the mails of each Message-ID and notes when the first came."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._server: socketserver.ThreadingTCPServer | None = None
        self.arrivals: dict[str, float] = {}
        self.subjects: dict[str, str] = {}

    def take(self, content: bytes) -> None:
        """Note one mail."""
        mail = email.message_from_bytes(content)
        key = str(mail["Message-ID"])
        with self._lock:
            self.arrivals.setdefault(key, time.time())
            self.subjects[key] = str(mail["Subject"])

    def start(self) -> None:
        """Accept mails."""
        mailbox = self

        class Session(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                serve_session(self.rfile, self.wfile, mailbox.take)

        self._server = _Server(("127.0.0.1", self._port), Session)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False


def serve_session(received: BufferedIOBase, answers: BufferedIOBase, take: Callable[[bytes], None]) -> None:
    """Answer the commands of one SMTP session (RFC 5321), and pass each mail to ``take``."""
    answers.write(b"220 ready\r\n")
    for line in received:
        command = line[:4].upper()
        if command == b"QUIT":
            answers.write(b"221 bye\r\n")
            return
        if command != b"DATA":
            answers.write(b"250 ok\r\n")
            continue
        answers.write(b"354 go on\r\n")
        lines = []
        while (text := received.readline()) not in (b".\r\n", b""):
            lines.append(text.removeprefix(b"."))
        if text:  # otherwise the connection ended within the mail
            take(b"".join(lines))
            answers.write(b"250 taken\r\n")


def main(argv: list[str]) -> dict[str, Any]:
    """End workloads, stop the mail server and the worker for a while, and compare with the mails that came.

    Return ``{"sent", "lost", "doubled", "delay_p95_s", "outage_s"}``. A repetition with the same Message-ID
    is not doubled.
    """
    from benchmarks.apply import _between

    parser = argparse.ArgumentParser(prog="./run bench notices", description=__doc__)
    parser.add_argument("--seconds", type=_between(10, 600), default=180)
    parser.add_argument("--outage", type=_between(1, 300), default=60)
    parser.add_argument("--per-second", type=_between(1, 100), default=5)
    options = parser.parse_args(argv)

    import django

    django.setup()
    return _measure(options.seconds, options.outage, options.per_second)


def _measure(seconds: int, outage: int, per_second: int) -> dict[str, Any]:
    from benchmarks.harness.small_pool import SmallPool
    from tools.ports import free_port

    port = free_port()
    mailbox = Mailbox(port)
    workloads = _queued_workloads(seconds * per_second)
    ended: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        pool = SmallPool(Path(folder), {"GPUPOOL_EMAIL_URL": f"smtp://127.0.0.1:{port}"})
        try:
            mailbox.start()
            schedule = str(Path(folder) / "beat")
            pool.start("beat", *BEAT, "--pidfile=", "-s", schedule)
            _start_worker(pool)
            began = time.monotonic()
            is_away, was_killed = False, False
            for number, (pk, name) in enumerate(workloads):
                _sleep_until(began + number / per_second)
                passed = time.monotonic() - began
                if not is_away and seconds / 3 <= passed < seconds / 3 + outage:
                    mailbox.stop()
                    is_away = True
                elif is_away and passed >= seconds / 3 + outage:
                    mailbox.start()
                    is_away = False
                if not was_killed and passed >= seconds * 5 / 6:
                    os.killpg(pool.processes["worker"].pid, signal.SIGKILL)
                    pool.processes["worker"].wait(10)
                    _start_worker(pool)
                    was_killed = True
                _end(pk)
                ended[name] = time.time()
            if is_away:
                mailbox.start()
            _wait_for(mailbox, len(ended))
        finally:
            pool.stop()
            mailbox.stop()
    return _figures(mailbox, ended, outage)


def _start_worker(pool: Any) -> None:
    before = pool.log("worker").count(" ready.") if "worker" in pool.processes else 0
    pool.start("worker", *WORKER, "-n", f"worker-{os.getpid()}@%h", "-Q", "notices,default", "-c", "2")
    pool.wait("worker", lambda: pool.log("worker").count(" ready.") > before)


def _queued_workloads(count: int) -> list[tuple[int, str]]:
    """Queue workloads of people who have mail channels. Return their keys and names."""
    from benchmarks.harness.pool_rows import make_pool_rows
    from portal.models import NoticeChannel, NoticeMark, User
    from portal.wording.notices.topics import TOPIC_LABELS
    from scheduler.models import Workload

    now = datetime.now(UTC)
    rows = make_pool_rows(GPUS, 0, now)
    people = User.objects.bulk_create(
        [
            User(username=f"reader-{number}", email=f"reader-{number}@example.org", password="!")
            for number in range(PEOPLE)
        ]
    )
    NoticeChannel.objects.bulk_create(
        [
            NoticeChannel(user=person, name="Mail", kind="mail", topics=list(TOPIC_LABELS), created_at=now)
            for person in people
        ]
    )
    found = []
    for number in range(count):
        name = f"work {number:06}"
        workload = rows.queue(now, number, name=name)
        Workload.objects.filter(pk=workload.pk).update(owner=people[number % PEOPLE])
        found.append((workload.pk, name))
    NoticeMark.objects.update_or_create(pk=1, defaults={"looked_until": now - timedelta(seconds=1)})
    return found


def _end(pk: int) -> None:
    from scheduler.models import Workload

    Workload.objects.filter(pk=pk, state="queued").update(
        state="ended", outcome="finished", ended_at=datetime.now(UTC)
    )


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def _wait_for(mailbox: Mailbox, expected: int) -> None:
    """Wait until all mails came, at most MAX_WAIT_SECONDS."""
    ends = time.monotonic() + MAX_WAIT_SECONDS
    while len(mailbox.arrivals) < expected and time.monotonic() < ends:
        time.sleep(0.2)


def _figures(mailbox: Mailbox, ended: dict[str, float], outage: int) -> dict[str, Any]:
    """Compare the mails with the workloads that ended. Each mail names its workload in its subject."""
    found: dict[str, list[float]] = collections.defaultdict(list)
    for key, subject in mailbox.subjects.items():
        name = next((word for word in (subject.partition("] ")[2][:11],) if word in ended), "")
        found[name].append(mailbox.arrivals[key])
    delays = [min(times) - ended[name] for name, times in found.items() if name]
    return {
        "sent": len(mailbox.arrivals),
        "lost": len(ended) - len(delays),
        "doubled": sum(len(times) - 1 for name, times in found.items() if name),
        "delay_p95_s": round(statistics.quantiles(delays, n=20)[-1], 1) if len(delays) > 1 else 0.0,
        "outage_s": outage,
    }
