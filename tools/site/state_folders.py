"""Find, read and remove the state folders of `./run demo` and `./run up`."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tools.console import RunError, say
from tools.paths import STATE, VENV
from tools.service_environment import kept_passwords
from tools.stores import embedded_stores

STOP_SECONDS = 90
NOT_RUNNING_STATUS = 3


def usual_folders() -> list[Path]:
    """Return the state folders that `./run demo` and `./run up` use without --state."""
    return [STATE / "demo", STATE / "up"]


def is_running(folder: Path) -> bool:
    """Return True while a supervisor of this folder runs."""
    place = folder / "lock"
    if not place.exists():
        return False
    with open(place) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def running_folder() -> Path | None:
    """Return the usual state folder with a running site; None if no site runs."""
    return next((folder for folder in usual_folders() if is_running(folder)), None)


def exit_if_running(folders: Sequence[Path]) -> None:
    """Exit with status 1 if a site runs in one of the folders.

    Print the address of the site first.
    """
    for folder in folders:
        if is_running(folder):
            pid, url = (folder / "supervisor").read_text().split()[:2]
            say(f"gpupool already runs: {url} (pid {pid}, state in {folder}). Stop it with: ./run stop")
            raise SystemExit(1)


def remove_state(folder: Path) -> None:
    """Remove a state folder. Raises RunError if the folder is not a state folder of gpupool."""
    if not folder.exists():
        return
    has_passwords = (folder / "secrets.json").exists()
    if not has_passwords and any(folder.iterdir()):
        raise RunError(f"--fresh: {folder} is not a state folder of gpupool; nothing was removed")
    if has_passwords and (VENV / "lib").exists():
        stores = embedded_stores(folder, kept_passwords(folder), durable=True)
        if stores.sockets.parent != folder:
            shutil.rmtree(stores.sockets, ignore_errors=True)
    shutil.rmtree(folder)


def logs_hint(folder: Path) -> str:
    """Return the command that shows the logs of the site in this folder."""
    return "./run logs NAME" + ("" if folder in usual_folders() else f" --state {shlex.quote(str(folder))}")


def stop_verb(arguments: list[str]) -> int:
    """Stop the running site and wait until it has ended."""
    parser = argparse.ArgumentParser(prog="./run stop")
    parser.add_argument("--state", type=Path)
    folder = _running_folder_of(parser.parse_args(arguments).state)
    if folder is None:
        say("gpupool is not running.")
        return 0
    pid = int((folder / "supervisor").read_text().split()[0])
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while is_running(folder):
        if time.monotonic() > deadline:
            raise RunError(f"pid {pid} does not stop after {STOP_SECONDS} s; see {folder / 'logs'}")
        time.sleep(0.1)
    say("Stopped. The state is kept.")
    return 0


def status_verb(arguments: list[str]) -> int:
    """Print the services of the running site; exit status 3 if none runs."""
    parser = argparse.ArgumentParser(prog="./run status")
    parser.add_argument("--json", action="store_true", help="one line for programs")
    parser.add_argument("--state", type=Path)
    options = parser.parse_args(arguments)
    folder = _running_folder_of(options.state)
    place = folder / "services.json" if folder else None
    found = json.loads(place.read_text()) if place and place.exists() else {"url": None, "services": {}}
    for entry in found["services"].values():
        entry.pop("began", None)
    if options.json:
        say(json.dumps(found))
    elif folder is None:
        say("gpupool is not running. Start it: ./run demo")
    else:
        say(found["url"])
        for name, entry in found["services"].items():
            again = f"  started again {entry['restarts']} times" if entry["restarts"] else ""
            say(f"  {name:<24} {entry['state']:<8} {entry['pid'] or '-'}{again}")
    return 0 if folder else NOT_RUNNING_STATUS


def logs_verb(arguments: list[str]) -> int:
    """Print the log of one service; without a name, print the names."""
    parser = argparse.ArgumentParser(prog="./run logs")
    parser.add_argument("name", nargs="?", help="a service; without a name, the names are printed")
    parser.add_argument("--follow", "-f", action="store_true")
    parser.add_argument("--lines", "-n", type=int, default=100)
    parser.add_argument("--state", type=Path)
    options = parser.parse_args(arguments)
    folders = [options.state] if options.state else [running_folder(), *usual_folders()]
    folder = next((place for place in folders if place and (place / "logs").exists()), None)
    names = sorted(log.stem for log in (folder / "logs").glob("*.log")) if folder else []
    if folder is not None and options.name is None:
        say("\n".join(names) or "No log yet.")
        return 0
    if folder is None or options.name not in names:
        raise RunError(f"no log named {options.name!r}; allowed: {', '.join(names) or 'none yet'}")
    follow = ["-F"] if options.follow else []
    log = folder / "logs" / f"{options.name}.log"
    os.execvp("tail", ["tail", "-n", str(options.lines), *follow, str(log)])
    return 0  # not reached: this process has become tail


def _running_folder_of(state: Path | None) -> Path | None:
    """Return the state folder of the running site; None if no site runs.

    If ``state`` is given, only this folder is checked. Otherwise the usual folders are checked.
    """
    if state is None:
        return running_folder()
    folder = Path(os.path.abspath(state))
    return folder if is_running(folder) else None
