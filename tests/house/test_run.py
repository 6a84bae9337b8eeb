"""Test the verbs of `./run`: exit status and output."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plan as plan_bench
from tools import environment, throw_away
from tools.console import RunError
from tools.processes import process_start
from tools.service_environment import agent_environment
from tools.site.state_folders import logs_hint
from tools.site.supervisor import Service, Supervisor, end_leftovers


def run(root: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "run"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )


def wait_for(condition: Any, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    found = Supervisor(tmp_path, "http://127.0.0.1:1")
    yield found
    found.stop([])


def service(folder: Path, name: str, *command: str, **more: Any) -> Any:
    return Service(name, list(command), dict(os.environ), folder / f"{name}.log", **more)


def test_an_unknown_verb_is_answered_with_the_known_verbs(root: Path) -> None:
    done = run(root, "dance")
    assert done.returncode == 2
    assert "'dance'" in done.stderr
    assert "demo" in done.stderr


@pytest.mark.parametrize("port", ["0", "65535", "-1", "http", "8470.5"])
def test_a_wrong_port_is_rejected_with_its_value(root: Path, port: str) -> None:
    done = run(root, "demo", f"--port={port}")
    assert done.returncode == 2
    assert repr(port) in done.stderr
    assert "1 to 65534" in done.stderr


def test_a_state_folder_that_cannot_be_made_is_reported(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(root, "demo", "--port", "18470", "--state", str(tmp_path / "file" / "inside"))
    assert done.returncode == 1
    assert "--state" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [("--gpus", "-1"), ("--gpus", "99999999999"), ("--queued", "x"), ("--rounds", "0"), ("--seed", "-5")],
)
def test_a_wrong_size_of_a_benchmark_is_rejected(wrong: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as caught:
        plan_bench.main(list(wrong))
    assert caught.value.code == 2


def test_a_port_in_use_is_reported_with_its_process(root: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(root, "demo", "--state", str(tmp_path / "site"), "--port", str(port))
    assert done.returncode == 1
    assert f"port {port} is in use by" in done.stderr
    assert f"pid {os.getpid()}" in done.stderr
    assert "--port N" in done.stderr
    assert not (tmp_path / "site").exists(), "no file is made before the ports are checked"


def test_a_second_demo_prints_the_address_of_the_first(root: Path, tmp_path: Path) -> None:
    (tmp_path / "supervisor").write_text("4711 http://127.0.0.1:9")
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run(root, "demo", "--state", str(tmp_path))
    assert done.returncode == 1
    assert "already runs: http://127.0.0.1:9" in done.stdout
    assert "4711" in done.stdout


def test_fresh_removes_only_a_state_folder_of_a_demo(root: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("three years of work")
    done = run(root, "demo", "--state", str(tmp_path), "--fresh", "--port", "61234")
    assert done.returncode == 1
    assert (tmp_path / "thesis.tex").exists()


def test_status_without_a_demo_is_one_line_of_json(root: Path, tmp_path: Path) -> None:
    done = run(root, "status", "--json", "--state", str(tmp_path))
    assert done.returncode == 3
    assert json.loads(done.stdout) == {"url": None, "services": {}}


def test_logs_of_an_unknown_service_lists_the_known_ones(root: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "web.log").write_text("hello\n")
    assert run(root, "logs", "web", "--state", str(tmp_path)).stdout == "hello\n"
    done = run(root, "logs", "wbe", "--state", str(tmp_path))
    assert done.returncode == 1
    assert "'wbe'" in done.stderr
    assert "web" in done.stderr


def test_logs_without_a_name_lists_the_services(root: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("web", "edge"):
        (tmp_path / "logs" / f"{name}.log").write_text("x")
    answer = run(root, "logs", "--state", str(tmp_path))
    assert (answer.returncode, answer.stdout.split()) == (0, ["edge", "web"])
    assert logs_hint(tmp_path) == f"./run logs NAME --state {tmp_path}"
    assert logs_hint(root / ".gpupool" / "demo") == "./run logs NAME"


def test_the_command_line_runs_without_installation(root: Path) -> None:
    answer = run(root, "gpupool", "--help")
    assert answer.returncode == 0 and "One shared pool of GPUs" in answer.stdout


def test_an_unknown_benchmark_is_rejected(root: Path) -> None:
    done = run(root, "bench", "speed")
    assert done.returncode == 1
    assert "'speed' is not a benchmark" in done.stderr


def test_a_service_killed_with_sigkill_is_restarted(supervisor: Supervisor, tmp_path: Path) -> None:
    sleeper = supervisor.add(service(tmp_path, "sleeper", "sleep", "600"))
    first = sleeper.process.pid
    os.kill(first, signal.SIGKILL)

    def is_back() -> bool:
        supervisor.check()
        return bool(sleeper.alive() and sleeper.process.pid != first)

    wait_for(is_back)
    recorded = json.loads((tmp_path / "services.json").read_text())["services"]["sleeper"]
    assert (recorded["state"], recorded["pid"], recorded["restarts"]) == ("running", sleeper.process.pid, 1)


def test_children_of_a_killed_service_are_ended_before_its_restart(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/child; wait"
    parent = supervisor.add(service(tmp_path, "parent", "sh", "-c", script))
    wait_for(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
    child = int((tmp_path / "child").read_text())
    os.kill(parent.process.pid, signal.SIGKILL)
    wait_for(lambda: not parent.alive())
    assert process_start(child) is not None
    supervisor.check()
    wait_for(lambda: process_start(child) is None)


def test_a_service_that_cannot_start_is_retried_with_growing_pauses(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    broken = supervisor.add(service(tmp_path, "broken", "false"))
    pauses = []

    def tried_three_times() -> bool:
        if supervisor.check() is None and broken.state == "waiting" and broken.pause not in pauses:
            pauses.append(broken.pause)
        return len(pauses) == 3

    wait_for(tried_three_times)
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]


def test_a_steady_service_is_always_restarted_at_once(supervisor: Supervisor, tmp_path: Path) -> None:
    store = supervisor.add(service(tmp_path, "store", "sleep", "600", steady_seconds=0.2))
    for _ in range(3):
        wait_for(
            lambda: supervisor.check() is None and store.alive() and time.monotonic() - store.started_at > 0.3
        )
        os.kill(store.process.pid, signal.SIGKILL)
        wait_for(lambda: not store.alive())
        supervisor.check()
        assert store.pause == 0.1


def test_a_one_time_service_is_done_when_it_succeeds(supervisor: Supervisor, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    once = supervisor.add(service(tmp_path, "once", "true", once=True, on_success=mark.touch))
    wait_for(lambda: supervisor.check() is None and once.state == "done")
    assert mark.exists()


def test_leftovers_of_a_killed_supervisor_are_ended_but_no_other_process(tmp_path: Path) -> None:
    leftover, stranger = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    try:
        entries = {
            "web": {"pid": leftover.pid, "began": process_start(leftover.pid)},
            # a reused pid: the recorded start time differs
            "edge": {"pid": stranger.pid, "began": "1"},
        }
        (tmp_path / "services.json").write_text(json.dumps({"url": "", "services": entries}))
        end_leftovers(tmp_path)
        assert leftover.wait(5) != 0
        assert stranger.poll() is None
    finally:
        for process in (leftover, stranger):
            process.kill()
            process.wait()


def test_an_agents_environment_contains_no_secret_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    env = agent_environment()
    assert not [
        name for name in env if name.startswith("GPUPOOL_") or "SECRET" in name or name.endswith("_URL")
    ]


def test_throw_away_services_of_a_killed_owner_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throw_away.tempfile, "tempdir", str(tmp_path))
    left, used = tmp_path / "gpupool-test-left", tmp_path / "gpupool-test-used"
    for folder in (left, used):
        folder.mkdir()
    server = subprocess.Popen(["sleep", "600"])
    (left / "owner").write_text("1 not-its-start")
    (left / "postgres.pid").write_text(f"{server.pid} {process_start(server.pid)}")
    (used / "owner").write_text(f"{os.getpid()} {process_start(os.getpid())}")
    throw_away.remove_abandoned()
    assert server.wait(5) == -signal.SIGKILL
    assert not left.exists()
    assert used.exists()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder with a short name: the path of a unix socket in it must not exceed 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gpt-") as folder:
        yield Path(folder)


def test_throw_away_services_end_with_their_command(root: Path, short_folder: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.endswith("_URL")} | {
        "TMPDIR": str(short_folder)
    }
    command = [sys.executable, str(root / "run"), "services", "--", "sh", "-c", "echo up; exec sleep 600"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None and started.stdout.readline() == "up\n"
        servers = [
            int(pid_file.read_text().split()[0]) for pid_file in short_folder.glob("gpupool-test-*/*.pid")
        ]
        assert len(servers) == 2
        started.terminate()
        assert started.wait(30) == 143
    assert not list(short_folder.glob("gpupool-test-*"))
    assert not [pid for pid in servers if process_start(pid)]


def test_requirements_files_name_no_package_index_and_no_url(root: Path) -> None:
    for lock in (root / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "://" not in text, lock
        assert "--index" not in text, lock
        assert "--hash=sha256:" in text, lock


def test_missing_programs_are_an_error_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(environment, "TEST_PROGRAMS", {"no-such-package": ("no-such-program",)})
    monkeypatch.setattr(environment, "install_system_packages", lambda packages, why: False)
    monkeypatch.setattr(environment, "UNPACKED_PROGRAMS", {})
    with pytest.raises(RunError, match="apt-get install -y no-such-package"):
        environment.ensure_test_programs()


def test_canaille_that_cannot_be_installed_is_an_error_in_ci_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(command: list[str]) -> None:
        raise RunError(f"cannot run {command[0]}")

    monkeypatch.setattr(environment, "CANAILLE_VENV", tmp_path / "canaille")
    monkeypatch.setattr(environment, "run_quietly", fail)
    monkeypatch.delenv("CI", raising=False)
    environment.ensure_canaille()
    assert "Tests that need Canaille will be skipped" in capsys.readouterr().out
    monkeypatch.setenv("CI", "true")
    with pytest.raises(RunError, match="Canaille is missing"):
        environment.ensure_canaille()


def test_missing_headers_of_ldap_are_named_by_their_debian_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "LDAP_PACKAGES", tmp_path / "ldap")
    monkeypatch.setattr(environment, "INCLUDE_FOLDERS", (tmp_path,))
    monkeypatch.setattr(environment, "install_system_packages", lambda packages, why: False)
    with pytest.raises(RunError, match="sudo apt-get install -y libldap2-dev libsasl2-dev"):
        environment.ensure_ldap()
    monkeypatch.delenv("CI", raising=False)
    environment.ensure_ldap_for_tests()
    assert "Tests of sign-in with LDAP will be skipped: sign-in with LDAP needs" in capsys.readouterr().out
    monkeypatch.setenv("CI", "true")
    with pytest.raises(RunError, match="LDAP is missing"):
        environment.ensure_ldap_for_tests()
    (tmp_path / "ldap.h").touch()
    assert environment.missing_ldap_headers() == ["libsasl2-dev"]


def test_prometheus_is_unpacked_and_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check the commands, and that a package that apt does not have is an error in CI."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(environment, "TEST_PROGRAMS", {})
    monkeypatch.setattr(environment, "UNPACKED_PROGRAMS", {"prometheus": ("no-such-program",)})
    monkeypatch.setattr(environment, "STATE", tmp_path)
    commands: list[list[str]] = []
    monkeypatch.setattr(environment, "_apt_succeeds", lambda command, folder=None: commands.append(command))
    with pytest.raises(RunError, match="prometheus is missing"):
        environment.ensure_test_programs()
    download, update = ["apt-get", "download", "prometheus"], ["apt-get", "update"]
    assert commands == ([download, update, download] if shutil.which("apt-get") else [])
