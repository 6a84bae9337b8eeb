"""Faults of hosts, their lines, clocks and disks, and of whoever claims to be one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.fault_injection.job_ledger import LedgerEntry, heartbeat_job
from benchmarks.fault_injection.process_faults import MAX_WAIT_SECONDS, FaultContext, cancel, fault, last_sync
from benchmarks.harness.installation import (
    GRACE_SECONDS,
    LEASE_SECONDS,
    ROOT,
    ConditionTimeout,
    LocalHost,
    new_boot,
    processes_of_runs,
    rows,
    shims,
    wait_until,
)

STOP_LIMIT_SECONDS = LEASE_SECONDS + GRACE_SECONDS + 1.0
BETWEEN_TICKS_SECONDS = 0.3  # they come every 2 s
RESTART_ELSEWHERE_LIMIT_SECONDS = (
    LEASE_SECONDS * 4 / 3 + GRACE_SECONDS + 2 + 4
)  # the server's count, its look every 2 s, and a start


def host_of(broken: FaultContext, run: str) -> LocalHost:
    from scheduler.models import Run

    name = rows(lambda: Run.objects.select_related("host").get(public_id=run).host.name)
    return next(host for host in broken.site.hosts if host.name == name)


def beating_job(
    broken: FaultContext, host: LocalHost | None = None, also: str = ""
) -> tuple[str, LedgerEntry, LocalHost]:
    """A job that writes all the time, its first start, and where that is."""
    more: dict[str, Any] = {"labels_required": {"name": host.name}} if host else {}
    workload = broken.ledger.insist(heartbeat_job(also), MAX_WAIT_SECONDS, to_end_well=False, **more)
    first = broken.ledger.wait_started(workload, MAX_WAIT_SECONDS)
    return workload, first, host_of(broken, first.run)


def last_beat(broken: FaultContext, run: str) -> float:
    """When a run last wrote."""
    return max((e.at for e in broken.ledger.entries() if e.run == run), default=0.0)


def state_of(workload: str) -> tuple[str, str]:
    from scheduler.models import Workload

    found = rows(
        lambda: Workload.objects.filter(public_id=workload).values_list("state", "reason_code").get()
    )
    return str(found[0]), str(found[1])


# -- the line ------------------------------------------------------------------------------------------------------------


@fault("a host cut off for 1 s: its work goes on, nothing starts elsewhere", 20)
def cut_off_1_s(broken: FaultContext) -> float:
    workload, first, host = beating_job(broken)
    with cut_off(broken, [host]):
        time.sleep(1)
    return _came_through(broken, workload, first, host)


@fault(
    "a host cut off for a lease and more: its work has stopped after lease + grace, and starts elsewhere after that",
    20,
)
def cut_off_10_s(broken: FaultContext) -> float:
    return _cut_off_for(broken, 10)


@fault("a host cut off for ten leases: as for one, and it comes back by itself", 20)
def cut_off_50_s(broken: FaultContext) -> float:
    return _cut_off_for(broken, 50)


@contextlib.contextmanager
def cut_off(broken: FaultContext, hosts: list[LocalHost]) -> Iterator[None]:
    for host in hosts:
        broken.site.cut_off(host)
    try:
        yield
    finally:
        for host in hosts:
            broken.site.join_again(host)


def _came_through(broken: FaultContext, workload: str, first: LedgerEntry, host: LocalHost) -> float:
    began, before = time.monotonic(), last_sync(host)
    wait_until(lambda: last_sync(host) > before, MAX_WAIT_SECONDS, f"{host.name} speaks again")
    took = time.monotonic() - began
    check_survives(broken, workload, first)
    cancel(broken, workload)
    return took


def check_survives(broken: FaultContext, workload: str, first: LedgerEntry, when: str = "") -> None:
    """It still writes, in the very run in which it began. Raises ConditionTimeout."""
    since = time.time()
    try:
        wait_until(lambda: last_beat(broken, first.run) > since, 5, "it writes")
    except ConditionTimeout:
        raise ConditionTimeout(
            f"its work goes on{when}: it is {state_of(workload)} and writes no more"
        ) from None
    if state_of(workload)[0] != "running":
        raise ConditionTimeout(f"its work goes on{when}: it is {state_of(workload)}")


def _cut_off_for(broken: FaultContext, seconds: float) -> float:
    workload, first, host = beating_job(broken)
    began, at = time.monotonic(), time.time()
    with cut_off(broken, [host]):
        wait_until(
            lambda: first.run not in processes_of_runs(broken.site.folder).values(),
            MAX_WAIT_SECONDS,
            "its work stops",
        )
        stopped = last_beat(broken, first.run) - at
        second = broken.ledger.wait_started(workload, MAX_WAIT_SECONDS, attempt=first.attempt + 1)
        took = time.monotonic() - began
        time.sleep(max(0.0, seconds - took))
    if stopped > STOP_LIMIT_SECONDS:
        raise ConditionTimeout(f"its work stops within {STOP_LIMIT_SECONDS:g} s: it took {stopped:.2f}")
    if second.at < at + stopped:
        raise ConditionTimeout(
            f"it starts elsewhere after that: it did {at + stopped - second.at:.2f} s before"
        )
    wait_until(
        lambda: broken.site.alive() == len(broken.site.hosts), MAX_WAIT_SECONDS, f"{host.name} comes back"
    )
    cancel(broken, workload)
    return took


@fault("60 % of the hosts cut off: nobody is evicted, none is called silent", 30, under_load=False)
def cut_off_most(broken: FaultContext) -> float:
    from scheduler.models import Host, Run

    jobs = [beating_job(broken, host) for host in broken.site.hosts]
    away = broken.rng.sample(broken.site.hosts, 3)
    names = [host.name for host in away]
    with cut_off(broken, away):
        time.sleep(LEASE_SECONDS * 3)
        silent = rows(lambda: Host.objects.filter(lease_state="silent").count())
        lost = rows(
            lambda: Run.objects.filter(public_id__in=[f.run for _, f, _ in jobs], state="ended").count()
        )
    began = time.monotonic()
    wait_until(lambda: broken.site.alive() == len(broken.site.hosts), MAX_WAIT_SECONDS, "all hosts come back")
    took = time.monotonic() - began
    for workload, _, _ in jobs:
        cancel(broken, workload)
    if silent or lost:
        raise ConditionTimeout(
            f"nobody is evicted: {silent} hosts silent, {lost} runs ended while {names} were cut off"
        )
    return took


@fault("frames of every agent dropped, doubled, held back and swapped for 10 s: all converges", 30)
def disturbed_messages(broken: FaultContext) -> float:
    gates = broken.site.gates
    before = gates.frames, gates.disturbed
    gates.rng = random.Random(broken.rng.random())
    time.sleep(10)
    gates.rng = None
    began = time.monotonic()
    took = broken.ledger.probe(began, MAX_WAIT_SECONDS)
    wait_until(lambda: broken.site.alive() == len(broken.site.hosts), MAX_WAIT_SECONDS, "every host is alive")
    print(
        f"    {gates.frames - before[0]} frames, {gates.disturbed - before[1]} of them disturbed", flush=True
    )
    return took


# -- who it is -----------------------------------------------------------------------------------------------------------


@fault("a reboot: what ran there is lost and starts again, nothing is taken for what it was", 30)
def reboot(broken: FaultContext) -> float:
    _needs_namespaces(broken)
    workload, first, host = beating_job(broken, broken.site.hosts[-1])
    began = time.monotonic()
    with broken.site.agent_down(host):
        _end_all(broken, host)
        new_boot(host)
    wait_until(
        lambda: broken.site.alive() == len(broken.site.hosts), MAX_WAIT_SECONDS, f"{host.name} comes back"
    )
    broken.ledger.wait_started(workload, MAX_WAIT_SECONDS, attempt=first.attempt + 1)
    took = time.monotonic() - began
    cancel(broken, workload)
    return took


def _end_all(broken: FaultContext, host: LocalHost) -> None:
    """All shims and workloads of one host."""
    runs = {place.name for place in (host.state / "runs").iterdir()}
    pids = [pid for run, pid in shims(broken.site.folder).items() if run in runs]
    pids += [pid for pid, run in processes_of_runs(broken.site.folder).items() if run in runs]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@fault("a stranger gets the pid of a shim: it is not adopted, the work starts again", 30)
def pid_reuse(broken: FaultContext) -> float:
    workload, first, host = beating_job(broken)
    wait_until(lambda: first.run in shims(broken.site.folder), MAX_WAIT_SECONDS, "its shim is there")
    pid = shims(broken.site.folder)[first.run]
    with broken.site.agent_down(host):
        for victim in [pid, *processes_of_runs(broken.site.folder, first.run)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        stranger = _with_pid(pid)
    began = time.monotonic()
    try:
        broken.ledger.wait_started(workload, MAX_WAIT_SECONDS, attempt=first.attempt + 1)
        took = time.monotonic() - began
        if stranger.poll() is not None:
            raise ConditionTimeout("the stranger is left alone: it was ended")
    finally:
        stranger.kill()
        stranger.wait()
    cancel(broken, workload)
    return took


def _with_pid(pid: int) -> subprocess.Popen[bytes]:
    """A program that has this pid. Others take pids meanwhile, so it takes some tries."""
    if os.geteuid() != 0:
        raise ConditionTimeout("a pid is chosen: needs root")
    ends = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < ends:
        if not Path(f"/proc/{pid}").exists():
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
            made = subprocess.Popen(["/bin/sleep", "300"])
            if made.pid == pid:
                return made
            made.kill()
            made.wait()
    raise ConditionTimeout(f"a program gets pid {pid}")


@fault(
    "a second agent with a copy of the state folder: turned away and shown, the first one's work goes on", 15
)
def duplicate_agent(broken: FaultContext) -> float:
    workload, first, host = beating_job(broken)
    began, at = time.monotonic(), time.time()
    with copied_agent(broken, host):
        wait_until(
            lambda: _turned_away(host, at, "agent_second", "agent_copy"),
            MAX_WAIT_SECONDS,
            "the copy is turned away and shown",
        )
        took = time.monotonic() - began
        time.sleep(2)
    _came_through(broken, workload, first, host)
    return took


@fault(
    "a copy of a state folder that its owner has gone on with: turned away and shown, also while the owner is down",
    15,
)
def cloned_host(broken: FaultContext) -> float:
    workload, first, host = beating_job(broken)
    copy = copied_state(host)
    before = _start_of(host)
    with broken.site.agent_down(host):
        pass
    wait_until(lambda: _start_of(host) != before, MAX_WAIT_SECONDS, "the original was started again")
    began, at = time.monotonic(), time.time()
    with broken.site.agent_down(host), copied_agent(broken, host, copy):
        wait_until(
            lambda: _turned_away(host, at, "agent_copy"),
            MAX_WAIT_SECONDS,
            "the clone is turned away and shown",
        )
        took = time.monotonic() - began
    # Its agent was down for as long as that took: for more than a lease, perhaps. Then its work starts again.
    since = time.time()
    wait_until(
        lambda: broken.site.alive() == len(broken.site.hosts), MAX_WAIT_SECONDS, f"{host.name} comes back"
    )
    wait_until(
        lambda: any(e.workload == workload and e.at > since for e in broken.ledger.entries()),
        MAX_WAIT_SECONDS,
        "its work goes on",
    )
    cancel(broken, workload)
    return took


def _turned_away(host: LocalHost, since: float, *codes: str) -> bool:
    from scheduler.models import Host

    shown = rows(lambda: Host.objects.get(name=host.name).refused_agent)
    return bool(shown and shown["code"] in codes and datetime.fromisoformat(shown["at"]).timestamp() > since)


def _start_of(host: LocalHost) -> str:
    from scheduler.models import Host

    return str(rows(lambda: Host.objects.get(name=host.name).agent_start))


def copied_state(host: LocalHost) -> Path:
    copy = host.state.parent / f"{host.name}-copy-{time.monotonic_ns()}"
    shutil.copytree(
        host.state,
        copy,
        symlinks=True,
        ignore=lambda folder, names: [n for n in names if n.endswith(".sock")],
    )
    return copy


@contextlib.contextmanager
def copied_agent(broken: FaultContext, host: LocalHost, copy: Path | None = None) -> Iterator[None]:
    """A second agent of a host, in the same place, on a copy of its state folder."""
    copy = copy or copied_state(host)
    command = list(host.command)
    command[command.index("--state") + 1] = str(copy)
    with (broken.site.folder / f"{host.name}-copy.log").open("ab") as log:
        process = subprocess.Popen(
            host.inside(command),
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=broken.site.agent_environment(host),
            cwd=ROOT,
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(copy, ignore_errors=True)


def _needs_namespaces(broken: FaultContext) -> None:
    if not all(host.namespace for host in broken.site.hosts):
        raise ConditionTimeout("a host of its own is made: needs root and ip")


# -- clocks --------------------------------------------------------------------------------------------------------------


@fault(
    "a host's clock jumps by an hour, to and fro: its work goes on, no lease is early or late, what is charged is right",
    20,
)
def clock_of_a_host(broken: FaultContext) -> float:
    from scheduler.models import Allocation

    workload, first, host = beating_job(broken)
    for hour in (3600, -3600, 0):
        broken.site.clocks.set(host.name, hour)
        time.sleep(LEASE_SECONDS + GRACE_SECONDS + 0.5)
        check_survives(broken, workload, first, f" at {hour:+} s")
    asked = time.time()
    cancel(broken, workload)
    wait_until(lambda: state_of(workload)[0] == "ended", MAX_WAIT_SECONDS, "it ends")
    took = time.time() - asked
    held = rows(lambda: Allocation.objects.get(run__public_id=first.run).period)
    wrong = abs(held.upper.timestamp() - last_beat(broken, first.run)), abs(held.lower.timestamp() - first.at)
    if max(wrong) > 2.5:
        raise ConditionTimeout(f"what it held is right: it is wrong by {wrong} s")
    return took


@fault(
    "the servers' clock jumps by an hour, to and fro, within a second too: nobody's work is stopped, and decisions go on",
    30,
)
def clock_of_the_servers(broken: FaultContext) -> float:
    workload, first, _ = beating_job(broken)
    worst = 0.0
    try:
        for hour in (3600, 0, -3600, 0):
            broken.site.clocks.set("servers", hour)
            worst = max(worst, broken.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS))
            time.sleep(LEASE_SECONDS + GRACE_SECONDS)
            check_survives(broken, workload, first, f" at {hour:+} s")
        for hour in (3600, -3600) * 10:
            broken.site.clocks.set("servers", hour)
            time.sleep(BETWEEN_TICKS_SECONDS)
            broken.site.clocks.set("servers", 0)
            time.sleep(BETWEEN_TICKS_SECONDS)
        worst = max(worst, broken.ledger.probe(time.monotonic(), MAX_WAIT_SECONDS))
        time.sleep(LEASE_SECONDS + GRACE_SECONDS)
        check_survives(broken, workload, first, " after settings that no tick saw")
    finally:
        broken.site.clocks.set("servers", 0)
    cancel(broken, workload)
    return worst


# -- disks ---------------------------------------------------------------------------------------------------------------


@fault(
    "a host's disk is full: what runs goes on, what is new is refused, the host's page says so, its agent comes back, a stop "
    "stops; all is well again after",
    60,
)
def disk_full_on_a_host(broken: FaultContext) -> float:
    _needs_namespaces(broken)
    host = broken.site.hosts[0]
    workload, first, _ = beating_job(broken, host)
    lost, begun, _ = beating_job(broken, host)
    filler = host.state / "filler"
    _fill(filler)
    try:
        wait_until(
            lambda: _notes_say(host, "disk is full"), MAX_WAIT_SECONDS, "the host says that its disk is full"
        )
        with broken.site.agent_down(host):
            _end_one(broken, begun.run)
            _fill(filler)
        wait_until(lambda: _has_ended(begun.run), MAX_WAIT_SECONDS, "what was lost meanwhile is said to be")
        wait_until(
            lambda: state_of(lost) == ("queued", "host_full"),
            MAX_WAIT_SECONDS,
            "nothing new is placed there, and what waits says why",
        )
        cancel(broken, lost)
        time.sleep(LEASE_SECONDS + GRACE_SECONDS)
        check_survives(broken, workload, first)
        _fill(filler)
        cancel(broken, workload)
        wait_until(lambda: state_of(workload)[0] == "ended", MAX_WAIT_SECONDS, "a stop reaches what runs")
    finally:
        filler.unlink()
    began = time.monotonic()
    wait_until(
        lambda: not _notes_say(host, "disk is full"),
        MAX_WAIT_SECONDS,
        "the host says that there is room again",
    )
    again, _, _ = beating_job(broken, host)
    took = time.monotonic() - began
    cancel(broken, again)
    return took


def _fill(filler: Path) -> None:
    """Take all the room of its disk, to the last byte; once more what has come free since."""
    for piece in (1 << 16, 1 << 10):
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * piece)


def _has_ended(run: str) -> bool:
    from scheduler.models import Run

    return bool(rows(lambda: Run.objects.filter(public_id=run, state="ended").exists()))


def _end_one(broken: FaultContext, run: str) -> None:
    """Shim and workload of one run."""
    for pid in (shims(broken.site.folder)[run], *processes_of_runs(broken.site.folder, run)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _notes_say(host: LocalHost, words: str) -> bool:
    from scheduler.models import Host

    return words in json.dumps(rows(lambda: Host.objects.get(name=host.name).hardware))
