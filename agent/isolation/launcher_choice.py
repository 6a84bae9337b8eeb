"""Chooses the launcher of this host: the strictest launcher with which a probe works."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.isolation.bubblewrap import BubblewrapLauncher
from agent.isolation.launchers import STAGE_ROOT, LaunchCommand, Launcher, PlainLauncher, SandboxRequest
from agent.shim import socket_filter, workload_entry

PROBE_TIMEOUT_SECONDS = 20


@dataclass(frozen=True)
class LauncherChoice:
    """The launcher of this host.

    ``users``: True if the workloads of each team run as a separate Unix user. ``notes``: sentences about
    missing isolation.
    """

    launcher: Launcher
    users: bool
    notes: list[str]


def choose_launcher(
    wanted: str, probe: Path, network: str = "private", user: int | None = None
) -> LauncherChoice:
    """Try the launchers with a probe, the strictest first, and return the first one that works.

    - ``wanted``: auto, bubblewrap or plain.
    - ``probe``: an empty folder for the files of the probe.
    - ``network``: "private" if workloads get only a loopback device; otherwise they use the agent's network.
    - ``user``: the uid under which the probe runs, from the range for teams; None: no user per team.

    Raises RuntimeError if ``wanted`` is bubblewrap and bubblewrap does not work.
    """
    if user is not None:
        STAGE_ROOT.mkdir(exist_ok=True, mode=0o755)
    if wanted == "plain":
        return _choose_plain(
            "No isolation: workloads run as plain processes, because of --launcher plain.",
            probe,
            user,
        )
    program = shutil.which("bwrap")
    if program is None:
        return _fall_back_to_plain(wanted, "bwrap is not installed", probe, user)
    first_problem = ""
    for launcher, with_user in _bubblewrap_candidates(program, network, user):
        problem = _probe_failure(launcher, probe, with_user)
        if not problem:
            return LauncherChoice(
                launcher,
                with_user is not None,
                _isolation_gaps(launcher, network, user, with_user, first_problem),
            )
        first_problem = first_problem or problem
    return _fall_back_to_plain(wanted, first_problem, probe, user)


def _bubblewrap_candidates(
    program: str, network: str, user: int | None
) -> list[tuple[BubblewrapLauncher, int | None]]:
    """Return the pairs of launcher and uid to try, the strictest first. A uid of None: no user per team."""
    networks = ("private", "host") if network == "private" else ("host",)
    users = (None,) if user is None else (user, None)
    return [
        (BubblewrapLauncher(program, nested=nested, network=candidate_network), uid)
        for candidate_network in networks
        for uid in users
        for nested in (False, True)
    ]


def _isolation_gaps(
    launcher: BubblewrapLauncher, network: str, user: int | None, with_user: int | None, problem: str
) -> list[str]:
    """Return a sentence for each kind of isolation that the chosen sandbox lacks.

    ``problem``: why a stricter sandbox does not work; '' if this sandbox is the strictest. ``with_user``: the
    uid of the successful probe; None: without a user per team.
    """
    notes = _no_team_users_note(user, "" if with_user is not None else problem)
    if launcher.nested:
        notes.append(f"Workloads can create user namespaces inside the sandbox: {problem}.")
    if launcher.network == "host" and network == "private":
        notes.append(_open_network_note(problem))
    return notes


def _open_network_note(why: str) -> str:
    return (
        "Workloads use the host's network: they reach the internet, services of the host "
        f"and other workloads ({why})."
    )


def _no_team_users_note(user: int | None, problem: str) -> list[str]:
    if user is None:
        return ["Every workload runs as the same user of the host: there is no user id per team."]
    if problem:
        return [
            "Every workload runs as the same user of the host: "
            f"a user id per team does not work here ({problem})."
        ]
    return []


def _fall_back_to_plain(wanted: str, problem: str, probe: Path, user: int | None) -> LauncherChoice:
    if wanted == "bubblewrap":
        raise RuntimeError(f"--launcher: bubblewrap does not run here: {problem}")
    note = f"No isolation: bubblewrap does not run here ({problem}). Workloads run as plain processes."
    return _choose_plain(note, probe, user)


def _choose_plain(note: str, probe: Path, user: int | None) -> LauncherChoice:
    problem = "" if user is None else _probe_failure(PlainLauncher(), probe, user)
    return LauncherChoice(
        PlainLauncher(), user is not None and not problem, [note, *_no_team_users_note(user, problem)]
    )


def can_restrict_abstract_sockets(launcher: Launcher) -> bool:
    """Return True if the host can prevent runs from connecting to abstract sockets of other processes."""
    return workload_entry.landlock_version() >= workload_entry.SCOPES_SINCE_ABI and not _is_setuid(launcher)


def can_filter_socket_families(launcher: Launcher) -> bool:
    """Return True if the host can forbid the socket families that no network namespace confines."""
    return socket_filter.supports_seccomp_filters() and not _is_setuid(launcher)


def _is_setuid(launcher: Launcher) -> bool:
    """Return True if bwrap is a setuid program.

    Such a program can't become root under a seccomp or Landlock filter.
    """
    return isinstance(launcher, BubblewrapLauncher) and bool(os.stat(launcher.program).st_mode & stat.S_ISUID)


def abstract_socket_note(launcher: Launcher, network: str) -> list[str]:
    """Return a list with a note if runs can reach abstract sockets of other processes; otherwise []."""
    if network == "internet" or (isinstance(launcher, BubblewrapLauncher) and launcher.network == "private"):
        return []  # the run has its own network namespace, which confines abstract sockets
    if can_restrict_abstract_sockets(launcher):
        return []
    return [
        "Workloads reach services of the host, also services of root, and other workloads through "
        "abstract sockets (sockets without a port or a file): this host can't close them. "
        "Linux 6.12 and newer can."
    ]


def socket_family_note(launcher: Launcher) -> list[str]:
    """Return a list with a note if runs can use socket families that no network namespace confines; or []."""
    if can_filter_socket_families(launcher):
        return []
    return [
        "Workloads can create sockets of families that no network namespace confines "
        "(AF_VSOCK reaches the hypervisor of a virtual machine, or the virtual machines of this host): "
        "this host can't close them."
    ]


def _probe_failure(launcher: Launcher, folder: Path, user: int | None) -> str:
    """Start a probe in the same way as a workload. Return '' if it worked, otherwise the reason."""
    folders = {name: folder / name for name in ("home", "checkpoint", "inbox", "outbox", "tmp", "tools")}
    for path in folders.values():
        path.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "python", "notebook"):
        (folders["tools"] / name).mkdir(exist_ok=True)
    box = SandboxRequest(
        command=[sys.executable, "-I", "-S", "-c", "print('works')"],
        owner="probe",
        home=folders["home"],
        checkpoint=folders["checkpoint"],
        inbox=folders["inbox"],
        outbox=folders["outbox"],
        tmp=folders["tmp"],
        tools=folders["tools"],
        user=user,
    )
    launch = launcher.launch(box)
    spec = shim_entry_spec(launcher, launch)
    argv, given = launch.argv, -1
    try:
        if isinstance(launcher, BubblewrapLauncher):
            argv, given = workload_entry.argv_with_environment(argv, {"LANG": "C.UTF-8"})
        if user is not None:
            for name in ("home", "checkpoint", "outbox", "tmp"):
                os.chown(folders[name], user, user)
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            pass_fds=[given] if given >= 0 else [],
            preexec_fn=lambda: workload_entry.enter_workload(spec),
        )
    except (subprocess.SubprocessError, OSError) as error:
        return str(error)
    finally:
        if given >= 0:
            os.close(given)
        shutil.rmtree(folder, ignore_errors=True)
    return (
        ""
        if done.stdout == "works\n"
        else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    )


def shim_entry_spec(launcher: Launcher, launch: LaunchCommand) -> dict[str, Any]:
    """Return the part of a run's spec that ``workload_entry.enter_workload`` reads in the shim."""
    return {
        "launcher": launcher.name,
        "user": launch.user,
        "group": launch.group,
        "groups": list(launch.groups),
        "stage": [list(pair) for pair in launch.stage],
        "stage_at": str(STAGE_ROOT),
        "own_sockets": can_restrict_abstract_sockets(launcher),
        "known_families": can_filter_socket_families(launcher),
    }
