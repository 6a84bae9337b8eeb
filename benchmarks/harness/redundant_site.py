"""Run a site with two web, two edge and two engine processes behind nginx. No process is restarted."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import site_processes
from benchmarks.harness.conditions import ConditionTimeout, wait_until
from benchmarks.harness.installation import Installation, LocalHost
from benchmarks.harness.site_processes import SiteProcesses
from benchmarks.harness.tls_proxy import CERTIFICATE, ProxySettings, nginx_command, write_certificate
from tools.environment import ensure_unpacked
from tools.paths import ROOT
from tools.ports import free_port
from tools.throw_away import throw_away_stores

ADDRESS = "127.0.0.1"
PAIRED = ("web-1", "web-2", "edge-1", "edge-2")
START_SECONDS = 300  # on a busy machine


class RedundantSite(Installation):
    """An installation of which each process but the stores, the worker and beat exists twice."""

    def __init__(self, folder: Path, hosts: int, lease_seconds: int) -> None:
        super().__init__(folder, hosts=hosts, lease_seconds=lease_seconds)
        ports = [free_port() for _ in range(5)]
        self.ports = dict(zip(PAIRED, ports[1:], strict=True))
        self.port = ports[0]  # of nginx
        self.url = f"https://{ADDRESS}:{self.port}"
        self.processes = SiteProcesses(folder)
        self._stores = ExitStack()

    @property
    def certificate(self) -> Path:
        return self.folder / CERTIFICATE

    def start_services(self) -> None:
        """Start the stores, all processes and nginx, and wait until the portal answers through nginx."""
        if not ensure_unpacked("nginx"):
            raise ConditionTimeout("nginx is installed: it can be installed as a package of Debian")
        write_certificate(self.folder, [ADDRESS, "*.notebooks.localhost"])
        os.environ["SSL_CERT_FILE"] = str(self.certificate)
        stores = self._stores.enter_context(throw_away_stores())
        own = {
            "GPUPOOL_STATE": str(self.folder / "site"),
            "GPUPOOL_PORTAL_URL": self.url,
            "GPUPOOL_EDGE_URL": self.url,
            "GPUPOOL_NOTEBOOK_DOMAIN": f"notebooks.localhost:{self.port}",
            "GPUPOOL_EDGE_STANDBY": "yes",
            "GPUPOOL_LEASE_SECONDS": str(self.lease_seconds),
            "GPUPOOL_RECORDING_HOURS": "0",
        }
        self.environment = {
            name: value
            for name, value in {**stores, **own}.items()
            if name.startswith("GPUPOOL_") or name in ("DATABASE_URL", "REDIS_URL")
        }
        env = {**stores, **own}
        migrate = [sys.executable, "manage.py", "migrate", "-v", "0", "--skip-checks"]
        subprocess.run(migrate, cwd=ROOT, env=env, check=True)
        commands = {
            **{name: site_processes.web_command(self.ports[name]) for name in ("web-1", "web-2")},
            **{name: site_processes.edge_command(self.ports[name]) for name in ("edge-1", "edge-2")},
            **{name: site_processes.engine_command(name) for name in ("engine-1", "engine-2")},
            "worker": site_processes.worker_command(),
            "beat": site_processes.beat_command(self.folder),
        }
        for name, command in commands.items():
            self.processes.start(name, command, ROOT, env)
        proxy = ProxySettings(self.folder, self.port, self.ports, ADDRESS, "notebooks.localhost")
        self.processes.start("nginx", nginx_command(proxy), ROOT, env)
        wait_until(self.is_healthy, START_SECONDS, "the portal answers through nginx", every=0.5)
        for name in ("engine-1", "engine-2"):
            log = self.folder / f"{name}.log"
            wait_until(lambda log=log: " ready." in log.read_text(errors="replace"), START_SECONDS, name)  # type: ignore[misc]

    def is_healthy(self) -> bool:
        """Return True if a web process answers through nginx."""
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=5, context=self.trust()) as answer:
                return int(answer.status) == 200
        except OSError:
            return False

    def trust(self) -> ssl.SSLContext:
        """Return the context that trusts the certificate of the proxy."""
        return ssl.create_default_context(cafile=str(self.certificate))

    def edge_of(self, host: LocalHost) -> str:
        """Return the address of nginx. The hosts have no networks of their own."""
        return self.url

    def agent_environment(self, host: LocalHost) -> dict[str, str]:
        """Return the environment of an agent that trusts the certificate of nginx."""
        return {**super().agent_environment(host), "SSL_CERT_FILE": str(self.certificate)}

    def pid(self, name: str) -> int:
        """Return the pid of a process."""
        return self.processes.running[name].pid

    def stop(self) -> None:
        """End all processes of the site."""
        super().stop()
        self.processes.stop()
        self._stores.close()
