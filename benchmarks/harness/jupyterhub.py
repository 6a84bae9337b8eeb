"""Measure notebook launches of JupyterHub, for comparison.

JupyterHub is installed into an environment of its own, with its simple local spawner and Node's
configurable-http-proxy.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

USER = "bench"
MAX_WAIT_SECONDS = 120.0


class JupyterHubUnavailable(Exception):
    """Raised when JupyterHub cannot be installed or started here."""


def measure(folder: Path, launches: int) -> list[float]:
    """Launch ``launches`` servers and return the seconds of each launch.

    A launch lasts from the request to start a server to the answer of a kernel.
    """
    place = folder / "jupyterhub"
    place.mkdir()
    python, proxy = _install(place)
    hub_port, proxy_port, api_port = _free_port(), _free_port(), _free_port()
    token = secrets.token_hex(32)
    (place / "config.py").write_text(_config(place, proxy, hub_port, proxy_port, api_port, token))
    with (place / "hub.log").open("wb") as log:
        hub = subprocess.Popen(
            [str(python.parent / "jupyterhub"), "-f", str(place / "config.py")],
            cwd=place,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=_environment(python),
        )
    try:
        return asyncio.run(_measure(place, hub, f"http://127.0.0.1:{proxy_port}", token, launches))
    finally:
        hub.send_signal(signal.SIGTERM)
        try:
            hub.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(hub.pid, signal.SIGKILL)
            hub.wait(10)


def _install(place: Path) -> tuple[Path, Path]:
    """Install JupyterHub and its proxy.

    Return the paths of the environment's Python and of the proxy program.
    """
    npm, uv = shutil.which("npm"), shutil.which("uv")
    if npm is None or shutil.which("node") is None:
        raise JupyterHubUnavailable(
            "JupyterHub's proxy needs node and npm, which are not installed: apt-get install -y nodejs npm"
        )
    python = place / "venv" / "bin" / "python"
    print("  installing JupyterHub in a throw-away environment", flush=True)
    if uv:
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(place / "venv")])
        _run([uv, "pip", "install", "--quiet", "--python", str(python), "jupyterhub", "jupyterlab"])
    else:
        _run([sys.executable, "-m", "venv", str(place / "venv")])
        _run([str(python), "-m", "pip", "install", "--quiet", "jupyterhub", "jupyterlab"])
    _run(
        [
            npm,
            "install",
            "--silent",
            "--no-fund",
            "--no-audit",
            "--prefix",
            str(place),
            "configurable-http-proxy",
        ]
    )
    return python, place / "node_modules" / ".bin" / "configurable-http-proxy"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JupyterHubUnavailable(f"{' '.join(command[:4])} ...: {(done.stdout + done.stderr)[-2000:]}")


def _environment(python: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "TMPDIR", "USER")}
    return {**kept, "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def _config(place: Path, proxy: Path, hub_port: int, proxy_port: int, api_port: int, token: str) -> str:
    home = place / "home"
    home.mkdir()
    root = ["--allow-root"] if os.geteuid() == 0 else []
    scopes = ["admin:users", "admin:servers", "access:servers"]
    return f"""
c.JupyterHub.ip = "127.0.0.1"
c.JupyterHub.port = {proxy_port}
c.JupyterHub.hub_port = {hub_port}
c.JupyterHub.db_url = "sqlite:///{place}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{place}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{home}"
c.Spawner.args = {root!r}
c.Spawner.default_url = "/lab"
c.ConfigurableHTTPProxy.command = ["{proxy}"]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
c.ConfigurableHTTPProxy.auth_token = "{secrets.token_hex(32)}"
c.JupyterHub.services = [{{"name": "bench", "api_token": "{token}"}}]
c.JupyterHub.load_roles = [{{"name": "bench", "scopes": {scopes!r}, "services": ["bench"]}}]
"""


async def _measure(
    place: Path, hub: subprocess.Popen[bytes], url: str, token: str, launches: int
) -> list[float]:
    import aiohttp

    from benchmarks.harness.jupyter_client import JupyterClient, first_output

    seconds = []
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        headers = {"Authorization": f"token {token}"}
        api = JupyterClient(session, f"{url}/hub/api", headers)
        await _wait_for_hub(api, hub, place)
        await api.ask("POST", f"/users/{USER}")
        for number in range(launches):
            begin = time.monotonic()
            status, text = await api.ask("POST", f"/users/{USER}/server")
            if status not in (201, 202):
                raise JupyterHubUnavailable(
                    f"JupyterHub did not start a server: {status} {text[:500]}\n{_log(place)}"
                )
            await _until_server(api, True, place)
            await first_output(
                JupyterClient(session, f"{url}/user/{USER}", {**headers, "Accept": "text/html"})
            )
            seconds.append(time.monotonic() - begin)
            print(f"  JupyterHub launch {number + 1}: {seconds[-1]:.2f} s", flush=True)
            await api.ask("DELETE", f"/users/{USER}/server")
            await _until_server(api, False, place)
    return seconds


async def _wait_for_hub(api: object, hub: subprocess.Popen[bytes], place: Path) -> None:
    import aiohttp

    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        try:
            status, _ = await api.ask("GET", "/users")  # type: ignore[attr-defined]
            if status == 200:
                return
        except aiohttp.ClientError:
            status = 0
        if hub.poll() is not None or time.monotonic() > deadline:
            raise JupyterHubUnavailable(f"JupyterHub does not answer ({status}):\n{_log(place)}")
        await asyncio.sleep(0.2)


async def _until_server(api: object, wanted: bool, place: Path) -> None:
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        _, text = await api.ask("GET", f"/users/{USER}?include_stopped_servers")  # type: ignore[attr-defined]
        servers = json.loads(text)["servers"]
        ready = bool(servers) and all(server["ready"] for server in servers.values())
        if ready if wanted else not any(server["ready"] or server["pending"] for server in servers.values()):
            return
        if time.monotonic() > deadline:
            raise JupyterHubUnavailable(
                f"JupyterHub's server is not {'ready' if wanted else 'stopped'}:\n{_log(place)}"
            )
        await asyncio.sleep(0.05)


def _log(place: Path) -> str:
    return (place / "hub.log").read_text(errors="replace")[-3000:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
