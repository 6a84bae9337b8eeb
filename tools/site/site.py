"""Prepare and start the parts of one site that runs from this checkout with `./run demo` or `./run up`."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tools.console import RunError, run_quietly, timed_step
from tools.paths import PYTHON, ROOT
from tools.service_environment import (
    agent_environment,
    backup_hours,
    backups_folder,
    kept_passwords,
    service_settings,
)
from tools.site.agents import agent_command, count_gpus, real_gpu_models
from tools.site.supervisor import Service, Supervisor
from tools.stores import Stores, embedded_stores

STORE_START_SECONDS = 30
STORE_STEADY_SECONDS = 2.0  # a store that ran for this long restarts at once after its end
STORE_LONGEST_PAUSE = 1.0  # short, so that a store restarts soon after a full disk has space again


class Site:
    """The folders, settings, stores and services of one site."""

    def __init__(self, folder: Path, port: int, demo: bool, history: bool) -> None:
        self.folder, self.port, self.demo, self.history = folder, port, demo, history
        self.url, self.edge_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
        self.logs = folder / "logs"
        self.supervisor = Supervisor(folder, self.url)
        self.stores: Stores | None = None
        self.env: dict[str, str] = {}
        self.owner_url = ""

    def prepare(self) -> None:
        """Make the passwords and the environment of the services, and write environment.json."""
        self.logs.mkdir(mode=0o700, exist_ok=True)
        passwords = kept_passwords(self.folder)
        settings = service_settings("demo", self.folder, passwords, self.port, self.port + 1)
        backups = backups_folder(self.folder)
        self.env = {**os.environ, **settings, "GPUPOOL_BACKUPS": str(backups)}
        embedded = embedded_stores(self.folder, passwords, durable=True, wal_archive=backups / "wal")
        if os.environ.get("DATABASE_URL"):
            owner_url = os.environ.get("GPUPOOL_OWNER_DATABASE_URL")
            self.owner_url = owner_url or os.environ["DATABASE_URL"]
        else:
            self.env["DATABASE_URL"], self.owner_url = embedded.url("app"), embedded.url("owner")
        if not os.environ.get("REDIS_URL"):
            self.env["REDIS_URL"] = embedded.redis_url
        self.env.pop("GPUPOOL_OWNER_DATABASE_URL", None)
        if not (os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL")):
            self.stores = embedded
        self._write_environment()

    def _write_environment(self) -> None:
        place = self.folder / "environment.json"
        place.touch(mode=0o600)
        ours = {
            name: value
            for name, value in self.env.items()
            if name.startswith("GPUPOOL_") or name in ("DATABASE_URL", "REDIS_URL")
        }
        ours["GPUPOOL_OWNER_DATABASE_URL"] = self.owner_url
        place.write_text(json.dumps(ours))

    def _service(self, name: str, *command: str, **options: object) -> Service:
        arguments: dict[str, object] = {"env": self.env, **options}
        return Service(name, list(command), log=self.logs / f"{name}.log", **arguments)  # type: ignore[arg-type]

    def start_stores(self) -> None:
        """Start each store that has no address in the caller's environment, and wait until it answers."""
        if self.stores is None:
            return
        stores = self.stores
        common = {
            "env": dict(os.environ),
            "steady_seconds": STORE_STEADY_SECONDS,
            "longest_pause": STORE_LONGEST_PAUSE,
        }
        stores.prepare()
        waiting = []
        if not os.environ.get("DATABASE_URL"):
            options = {"stop_signal": signal.SIGINT, "stop_seconds": 20, "options": stores.launch.options()}
            postgres = self._service("postgres", *stores.postgres_command(), **common, **options)
            waiting.append((self.supervisor.add(postgres), stores.postgres_answers))
        if not os.environ.get("REDIS_URL"):
            valkey = self._service("valkey", *stores.redis_command(), **common)
            waiting.append((self.supervisor.add(valkey), stores.redis_answers))
        for service, answers in waiting:
            self.supervisor.wait_for(answers, service, STORE_START_SECONDS)
        if not os.environ.get("DATABASE_URL"):
            stores.make_roles()

    def start_collecting_static(self) -> subprocess.Popen[str] | None:
        """Start copying the static files and return the process; None if no file has changed."""
        mark, digest = self.folder / "static.sha256", self._static_digest()
        if mark.exists() and mark.read_text() == digest and (self.folder / "static").exists():
            return None
        mark.unlink(missing_ok=True)
        return subprocess.Popen(
            [str(PYTHON), "manage.py", "collectstatic", "--noinput", "--clear", "-v", "0"],
            cwd=ROOT,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish_collecting_static(self, collecting: subprocess.Popen[str] | None) -> None:
        """Wait until the static files are in place. Raises RunError."""
        if collecting is None:
            return
        output, _ = collecting.communicate()
        if collecting.returncode != 0:
            raise RunError(f"collecting static files failed:\n{output[-2000:]}")
        (self.folder / "static.sha256").write_text(self._static_digest())

    def _static_digest(self) -> str:
        return self._digest("static/**/*", "requirements/base.txt")

    def migrate(self) -> None:
        """Migrate the schema and grant the application's role its rights.

        Does nothing if migrations, locked packages and rights have not changed since the last start.
        """
        digest = self._digest("*/migrations/*.py", "requirements/base.txt", "config/roles.py")
        mark = self.folder / "migrated.sha256"
        if mark.exists() and mark.read_text() == digest:
            return
        with timed_step("database migrated"):
            owner = {**self.env, "DATABASE_URL": self.owner_url}
            self._manage("migrate", "-v", "0", "--skip-checks", env=owner)
            run_quietly([str(PYTHON), "-m", "config.roles", self.env["DATABASE_URL"]], cwd=ROOT, env=owner)
        mark.write_text(digest)

    def _manage(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        run_quietly([str(PYTHON), "manage.py", *arguments], cwd=ROOT, env=env or self.env)

    def _digest(self, *patterns: str) -> str:
        digest = hashlib.sha256(self.env["DATABASE_URL"].encode())
        for pattern in patterns:
            for path in sorted(ROOT.glob(pattern)):
                if path.is_file():
                    digest.update(f"{path}\0".encode() + path.read_bytes())
        return digest.hexdigest()

    def start_programs(self) -> Service:
        """Start web, edge, engine, worker and beat, and return web.

        Web starts first, because users wait for it.
        """
        web = self.supervisor.add(self._service("web", *self._web_command()))
        celery = (str(PYTHON), "-m", "celery", "-A", "config.celery")
        worker = ("worker", "--without-gossip", "--without-mingle")
        # The engine skips Django's checks, so that it restarts fast. The service named worker runs the
        # checks.
        engine = (*celery[:3], "--skip-checks", *celery[3:], *worker, "-n", "engine@%h", "-Q", "engine")
        queues = "telemetry,money,notices,default"
        schedule = str(self.folder / "beat-schedule")
        commands: dict[str, tuple[str, ...]] = {
            "edge": (str(PYTHON), "-m", "portal.edge"),
            "engine": (*engine, "-c", "1", "--prefetch-multiplier", "1", "-l", "info"),
            "worker": (*celery, *worker, "-n", "worker@%h", "-Q", queues, "-c", "2"),
            "beat": (*celery, "beat", "-s", schedule, "--pidfile="),
        }
        for name, command in commands.items():
            self.supervisor.add(self._service(name, *command))
        return web

    def schedule_backups(self) -> None:
        """Start the service that takes and verifies backups, unless GPUPOOL_BACKUP_HOURS is 0."""
        if hours := backup_hours():
            command = [sys.executable, str(ROOT / "run"), "backup", "--state", str(self.folder)]
            self.supervisor.add(self._service("backup", *command, "--verify", "--every", str(hours)))

    def _web_command(self) -> list[str]:
        return [
            str(PYTHON),
            "-m",
            "uvicorn",
            "config.asgi:application",
            "--http",
            "config.http.slow_header_guard:HeaderTimeoutProtocol",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--no-proxy-headers",
            "--no-access-log",
            "--no-server-header",
            "--timeout-graceful-shutdown",
            "3",
        ]

    def start_making_setup_code(self) -> subprocess.Popen[str]:
        """Start making a code for the first run, and return the process.

        An installation with accounts has no code.
        """
        return subprocess.Popen(
            [str(PYTHON), "manage.py", "setup_code", "--skip-checks"],
            cwd=ROOT,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish_making_setup_code(self, making: subprocess.Popen[str]) -> str:
        """Return the code for the first run; empty if an account exists. Raises RunError."""
        code, errors = making.communicate()
        if making.returncode != 0:
            raise RunError(f"making the setup code failed:\n{errors[-2000:]}")
        return code.strip()

    def web_answers(self) -> bool:
        """Return True if the portal answers its liveness probe."""
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=5) as answer:
                return int(answer.status) == 200
        except (urllib.error.URLError, OSError):
            return False

    def edge_answers(self) -> bool:
        """Return True if the edge accepts connections."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port + 1)) == 0

    # The methods below make the demo organisation. A management command makes its people and hosts once.

    def make_organisation(self) -> dict[str, object]:
        """Return the sign-ins and the agents of the demo organisation, and make it if necessary.

        Hosts that have not joined yet get new join tokens.
        """
        place = self.folder / "organisation.json"
        kept = json.loads(place.read_text()) if place.exists() else {}
        folders = [self._agent_folder(agent["name"]) for agent in kept.get("agents", [])]
        if folders and all((folder / "identity.json").exists() for folder in folders):
            return dict(kept)
        with timed_step("demo organisation made"):
            new = self.folder / "organisation.new"
            new.unlink(missing_ok=True)
            models = real_gpu_models() if count_gpus() > 0 else []
            this_machine = ["--this-machine", ",".join(models)] if models else []
            past = [] if self.history else ["--no-history"]
            self._manage("demo_organisation", "--out", str(new), *this_machine, *past)
            made = json.loads(new.read_text())
            if kept:
                made["sign_ins"] = kept["sign_ins"]
                new.write_text(json.dumps(made))
            new.replace(place)
        if not kept and not self.history:
            self._history_mark.touch()  # a demo that was made without a past never loads one
        return dict(made)

    def _agent_folder(self, name: str) -> Path:
        return self.folder / "agents" / name

    def start_agents(self, organisation: Mapping[str, object]) -> None:
        """Start one agent per host. The first host uses this machine's GPUs, if there are any."""
        for agent in organisation["agents"]:  # type: ignore[attr-defined]
            name = str(agent["name"])
            command = agent_command(self.folder, self._agent_folder(name), self.edge_url, agent)
            options = {"env": agent_environment(), "keeps_children": True, "stop_seconds": 20}
            self.supervisor.add(self._service(f"agent-{name}", *command, **options))

    def submit_first_work(self) -> None:
        """Submit the workloads that the first page shows, once per demo.

        The management command waits until the hosts have reported their GPUs.
        """
        done = self.folder / "first-work.done"
        if not done.exists():
            with timed_step("first jobs submitted"):
                self._manage("demo_work")
            done.touch()

    @property
    def _history_mark(self) -> Path:
        return self.folder / "history.done"

    def history_is_loading(self) -> bool:
        """Return True if the demo has a simulated past that is not yet completely loaded."""
        return self.history and not self._history_mark.exists()

    def start_history(self) -> None:
        """Load the simulated past in the background, unless it is loaded already."""
        if self.history_is_loading():
            command = ("nice", "-n", "10", str(PYTHON), "manage.py", "demo_history")
            options = {"once": True, "stop_seconds": 5, "on_success": self._history_mark.touch}
            self.supervisor.add(self._service("history", *command, **options))
