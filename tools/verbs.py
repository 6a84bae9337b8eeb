"""Run the verb that is the first argument of `./run`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

from tools.backup.verbs import backup_verb, restore_verb
from tools.bench import bench_verb
from tools.console import RunError, say
from tools.environment import ensure_environment, ensure_ldap
from tools.gates import check_verb
from tools.paths import PYTHON, ROOT, VENV
from tools.sbom import sbom_verb
from tools.service_environment import agent_environment, environment_of_site
from tools.site.site_verbs import demo_verb, up_verb
from tools.site.state_folders import logs_verb, running_folder, status_verb, stop_verb
from tools.testing import test_verb
from tools.throw_away import throw_away_stores

WRONG_USE_STATUS = 2


def services_verb(arguments: list[str]) -> int:
    """Run a command with throw-away services."""
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not command:
        raise RunError("./run services -- COMMAND: the command is missing")
    ensure_environment(with_tests=True, quiet=True)
    with throw_away_stores() as env:
        return subprocess.run(command, env=env).returncode


def manage_verb(arguments: list[str]) -> int:
    """Run a management command with the running services, or with throw-away services."""
    ensure_environment(quiet=True)
    command = [str(PYTHON), str(ROOT / "manage.py"), *arguments]
    folder = running_folder()
    if folder is None:
        print("gpupool is not running; using throw-away services.", file=sys.stderr)
        with throw_away_stores() as env:
            return subprocess.run(command, env=env).returncode
    env = environment_of_site(folder)
    owner_url = env.pop("GPUPOOL_OWNER_DATABASE_URL")
    if arguments[:1] == ["migrate"]:
        env["DATABASE_URL"] = owner_url
    return subprocess.run(command, env=env).returncode


def agent_verb(arguments: list[str]) -> int:
    """Replace this process with the agent of this machine."""
    ensure_environment(quiet=True)
    os.chdir(ROOT)
    os.execve(str(PYTHON), [str(PYTHON), "-m", "agent", *arguments], agent_environment())


def gpupool_verb(arguments: list[str]) -> int:
    """Replace this process with the `gpupool` command line."""
    ensure_environment(quiet=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    os.execve(str(PYTHON), [str(PYTHON), "-P", "-m", "cli", *arguments], env)


def build_agent_verb(arguments: list[str]) -> int:
    """Build the files that a GPU host installs."""
    program = str(ROOT / "deploy" / "build_agent.py")
    return subprocess.run([sys.executable, program, *arguments]).returncode


def env_verb(arguments: list[str]) -> int:
    """Create or update the Python environment. With --ldap, also install the packages of LDAP sign-in."""
    ensure_environment(with_tests="--tests" in arguments)
    if "--ldap" in arguments:
        ensure_ldap()
    say(f"The environment is {VENV}")
    return 0


VERBS: dict[str, Callable[[list[str]], int]] = {
    "demo": demo_verb,
    "up": up_verb,
    "stop": stop_verb,
    "status": status_verb,
    "logs": logs_verb,
    "test": test_verb,
    "check": check_verb,
    "bench": bench_verb,
    "backup": backup_verb,
    "restore": restore_verb,
    "agent": agent_verb,
    "gpupool": gpupool_verb,
    "build-agent": build_agent_verb,
    "manage": manage_verb,
    "services": services_verb,
    "sbom": sbom_verb,
    "env": env_verb,
}


def run_verb(arguments: list[str], help_text: str) -> int:
    """Run the verb in the first argument and return the exit status. Without a verb, print the help."""
    verb = arguments[0] if arguments else ""
    if verb in ("", "-h", "--help", "help"):
        say(help_text)
        return 0 if verb else WRONG_USE_STATUS
    if verb not in VERBS:
        print(f"gpupool: unknown verb {verb!r}; allowed: {', '.join(VERBS)}", file=sys.stderr)
        return WRONG_USE_STATUS
    # On SIGTERM, exit by SystemExit, so that throw-away services are stopped too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        return VERBS[verb](arguments[1:])
    except RunError as error:
        print(f"gpupool: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
