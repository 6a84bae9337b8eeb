"""Chooses the launcher of this host by trying which sandbox works."""

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
    """What this host can do. ``users``: whether workloads run as a user of their team; ``notes`` says what is lacking."""

    launcher: Launcher
    users: bool
    notes: list[str]


def choose_launcher(
    wanted: str, probe: Path, network: str = "private", user: int | None = None
) -> LauncherChoice:
    """The launcher for this host, by trying. ``wanted``: auto, bubblewrap or plain. ``probe``: an empty folder. ``network``:
    private for a loopback of its own, else that of whoever starts it. ``user``: one that teams may have; None: no user per team.

    Raises RuntimeError when bubblewrap is demanded and does not run here.
    """
    if user is not None:
        STAGE_ROOT.mkdir(exist_ok=True, mode=0o755)
    if wanted == "plain":
        return _choose_plain(
            "No isolation: workloads run as plain processes, because this agent was started so.", probe, user
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
    """Every way to use bubblewrap that is as tight as ``network`` allows, and then what is left where those don't run."""
    networks = ("private", "host") if network == "private" else ("host",)
    users = (None,) if user is None else (user, None)
    return [
        (BubblewrapLauncher(program, nested=nested, network=own), each)
        for own in networks
        for each in users
        for nested in (False, True)
    ]


def _isolation_gaps(
    launcher: BubblewrapLauncher, network: str, user: int | None, with_user: int | None, problem: str
) -> list[str]:
    """What this sandbox does not keep apart. ``problem``: why the tightest one does not run here, or ''."""
    notes = _no_team_users_note(user, "" if with_user is not None else problem)
    if launcher.nested:
        notes.append(f"Workloads can make user namespaces of their own inside the sandbox: {problem}.")
    if launcher.network == "host" and network == "private":
        notes.append(_open_network_note(problem))
    return notes


def _open_network_note(why: str) -> str:
    return (
        f"Workloads use the host's network: they reach the internet and whatever listens on the host, other workloads "
        f"included ({why})."
    )


def _no_team_users_note(user: int | None, problem: str) -> list[str]:
    if user is None:
        return ["Every workload runs as the same user of the host: there is no user id per team."]
    if problem:
        return [
            f"Every workload runs as the same user of the host: a user id per team does not work here ({problem})."
        ]
    return []


def _fall_back_to_plain(wanted: str, problem: str, probe: Path, user: int | None) -> LauncherChoice:
    if wanted == "bubblewrap":
        raise RuntimeError(f"--launcher: bubblewrap does not run here: {problem}")
    note = f"NO ISOLATION: bubblewrap does not run here ({problem}). Workloads run as plain processes."
    return _choose_plain(note, probe, user)


def _choose_plain(note: str, probe: Path, user: int | None) -> LauncherChoice:
    problem = "" if user is None else _probe_failure(PlainLauncher(), probe, user)
    return LauncherChoice(
        PlainLauncher(), user is not None and not problem, [note, *_no_team_users_note(user, problem)]
    )


def can_restrict_abstract_sockets(launcher: Launcher) -> bool:
    """Whether runs can be kept from abstract sockets of others."""
    return workload_entry.landlock_version() >= workload_entry.SCOPES_SINCE_ABI and not _is_setuid(launcher)


def can_filter_socket_families(launcher: Launcher) -> bool:
    """Whether runs can be kept from sockets that belong to no network."""
    return socket_filter.supports_seccomp_filters() and not _is_setuid(launcher)


def _is_setuid(launcher: Launcher) -> bool:
    """A bwrap that becomes root by itself can't do that when it is kept from something before."""
    return isinstance(launcher, BubblewrapLauncher) and bool(os.stat(launcher.program).st_mode & stat.S_ISUID)


def abstract_socket_note(launcher: Launcher, network: str) -> list[str]:
    """What to say of abstract sockets of others where ``launcher`` starts runs in the host's network and can't close them."""
    if network == "internet" or (isinstance(launcher, BubblewrapLauncher) and launcher.network == "private"):
        return []  # they belong to a network
    if can_restrict_abstract_sockets(launcher):
        return []
    return [
        "Workloads reach services of the host, root's too, and other workloads where these listen without a port or a file "
        "(abstract sockets): this host can't close them. Linux 6.12 and newer can."
    ]


def socket_family_note(launcher: Launcher) -> list[str]:
    """What to say of sockets that belong to no network where they can't be closed."""
    if can_filter_socket_families(launcher):
        return []
    return [
        "Workloads can make sockets of every kind, also of those that no network confines (AF_VSOCK reaches the hypervisor of a "
        "virtual machine, or the virtual machines of this host): this host can't close them."
    ]


def _probe_failure(launcher: Launcher, folder: Path, user: int | None) -> str:
    """Why a workload can't be started so here, as ``user`` and with the interpreter of notebooks; '' when one was."""
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
    except (
        subprocess.SubprocessError
    ) as error:  # what went wrong between fork and exec comes without its reason
        return str(error)
    except OSError as error:
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
    """What of a run's spec the shim needs to enter the sandbox (``workload_entry.enter``)."""
    return {
        "launcher": launcher.name,
        "user": launch.user,
        "stage": [list(pair) for pair in launch.stage],
        "stage_at": str(STAGE_ROOT),
        "own_sockets": can_restrict_abstract_sockets(launcher),
        "known_families": can_filter_socket_families(launcher),
    }
