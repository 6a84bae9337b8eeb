"""Run `./run demo` and `./run up`: start a site, keep it running, and stop it on a signal."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import threading
import time
import types
from collections.abc import Mapping
from pathlib import Path

from tools.console import STARTED_AT, RunError, say, timed_step
from tools.environment import ensure_environment, offer_sandbox
from tools.paths import STATE
from tools.ports import check_port, port_number
from tools.site.site import Site
from tools.site.state_folders import exit_if_running, logs_hint, remove_state, usual_folders
from tools.site.supervisor import end_leftovers

DEFAULT_PORT = 8470
STOP_ORDER = (("backup",), ("beat",), ("engine", "worker"), ("edge", "web"), ("valkey",), ("postgres",))
PROGRAM_START_SECONDS = 60


def demo_verb(arguments: list[str]) -> int:
    """Run the whole product with a demo organisation."""
    return _site_verb(arguments, demo=True)


def up_verb(arguments: list[str]) -> int:
    """Run the services without demo data."""
    return _site_verb(arguments, demo=False)


def _site_verb(arguments: list[str], demo: bool) -> int:
    options = _parse(arguments, demo)
    folder = Path(os.path.abspath(options.state))
    # A site in a folder of its own (--state) may run at the same time as a site in a usual folder.
    exit_if_running(usual_folders() if folder in usual_folders() else [folder])
    for port in (options.port, options.port + 1):
        check_port(port)
    STATE.mkdir(exist_ok=True)
    end_leftovers(folder)
    if demo and options.fresh:
        remove_state(folder)
    # Mode 711: workloads of other users can reach their homes below this folder, but cannot list the folder.
    try:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    except OSError as error:
        allowed = "allowed: a folder that exists or can be created"
        raise RunError(f"--state {folder}: {error.strerror}; {allowed}") from None
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        site = Site(folder, options.port, demo, history=demo and not options.no_history)
        (folder / "supervisor").write_text(f"{os.getpid()} {site.url}")
        return _run(site)


def _parse(arguments: list[str], demo: bool) -> argparse.Namespace:
    name = "demo" if demo else "up"
    parser = argparse.ArgumentParser(prog=f"./run {name}")
    port_help = "the portal's port; the edge takes the next one"
    parser.add_argument("--port", type=port_number, default=DEFAULT_PORT, help=port_help)
    state_help = "the folder for all state"
    parser.add_argument("--state", type=Path, default=STATE / name, help=state_help)
    if demo:
        parser.add_argument("--fresh", action="store_true", help="delete all state and start again")
        parser.add_argument("--no-history", action="store_true", help="leave out the simulated past")
    return parser.parse_args(arguments)


def _run(site: Site) -> int:
    supervisor = site.supervisor
    starting = True

    def end(number: int, frame: types.FrameType | None) -> None:
        """Handle a signal: interrupt the start of the site, or stop the supervision after the start.

        Later signals are ignored.
        """
        if not supervisor.stopping:
            supervisor.stopping = True
            if starting:
                raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    say("Starting gpupool" + (" with its demo organisation" if site.demo else ""))
    try:
        _start(site)
        starting = False
        supervisor.run()
    except KeyboardInterrupt:
        pass
    except RunError as error:
        say(f"gpupool: {error}")
        return 1
    finally:
        if supervisor.services:
            say("Stopping")
            supervisor.stop(STOP_ORDER)
            say("Stopped. The state is kept.")
    return 0


def _start(site: Site) -> None:
    sandbox = threading.Thread(target=offer_sandbox, daemon=True)
    sandbox.start()
    ensure_environment()
    site.prepare()
    collecting = site.start_collecting_static()
    with timed_step("PostgreSQL and Valkey up"):
        site.start_stores()
    site.migrate()
    # The web process lists the static files only at its own start. Therefore they must be complete now.
    site.finish_collecting_static(collecting)
    web = site.start_programs()
    making = None if site.demo else site.start_making_setup_code()
    organisation = site.make_organisation() if site.demo else {}
    with timed_step("pages and engine up"):
        site.supervisor.wait_for(site.web_answers, web, PROGRAM_START_SECONDS)
    site.schedule_backups()
    if site.demo:
        sandbox.join()
        with timed_step("agents started"):
            edge = next(service for service in site.supervisor.services if service.name == "edge")
            site.supervisor.wait_for(site.edge_answers, edge, PROGRAM_START_SECONDS)
            site.start_agents(organisation)
        site.submit_first_work()
        site.start_history()
    _announce(site, organisation, site.finish_making_setup_code(making) if making else "")


def _announce(site: Site, organisation: Mapping[str, object], setup_code: str) -> None:
    """Print the address, the sign-ins or the setup code, and how to stop the site."""
    say()
    say(f"gpupool is ready: {site.url}   ({time.monotonic() - STARTED_AT:.1f} s)")
    sign_ins = organisation.get("sign_ins")
    if isinstance(sign_ins, list):
        _print_sign_ins(sign_ins)
    if site.history_is_loading():
        say()
        say("A simulated past of the pool is loading in the background; the pages show its progress.")
    if setup_code:
        say()
        say("Open it in a browser. The first page creates the first operator, and demands this setup code:")
        say(f"  {setup_code}")
    say()
    say(f"Ctrl-C stops gpupool and keeps the state. Logs: {logs_hint(site.folder)}")


def _print_sign_ins(sign_ins: list[Mapping[str, object]]) -> None:
    rows = [[str(entry.get(key, "")) for key in ("role", "username", "password")] for entry in sign_ins]
    rows.insert(0, ["", "user name", "password"])
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    say()
    for row in rows:
        say("  " + "   ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
