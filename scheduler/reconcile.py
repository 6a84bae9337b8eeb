"""Desired state against observed state, host by host. Level-triggered: each frame says all that is so, so a lost, doubled, late or
reordered one changes nothing that the next does not put right."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from agent.protocol import VERSION, Desired, GangWanted, Observed, RunSeen, RunWanted
from scheduler import attempts, commands, diagnostics, gangs, geometry, inventory, leases, locks, nudge, volumes
from scheduler.core.reasons import Code
from scheduler.models import Allocation, Command, Host, Pool, Run, Team, Workload, WorkloadKind
from scheduler.services.agents import due_challenge, note_refused_agent, renewed_credential
from scheduler.services.hosts import record_host_change
from scheduler.states import LeaseState, RunState, WorkloadState, change_state
from scheduler.wire_values import moment, public_id
from scheduler.workspace_secret import workspace_secret

MISSING_SECONDS = 10  # a run that its agent has not named for so long is not there
KEPT_STEP = 200  # characters
LONGEST_START, MOST_STARTS = 64, 32


class AgentRefused(Exception):
    """The server's clear no to an agent. ``retry`` says whether asking again later may help."""

    def __init__(self, reason: str, retry: bool = False, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.code = code  # agent_copy or agent_second: people have to choose between two agents


# -- observed ------------------------------------------------------------------------------------------------------------


def observe(host: Host, observed: Observed, now: datetime, gpu_faults: Collection[str] = ()) -> None:
    """Take in what an agent reports of its host. ``gpu_faults``: which codes of hardware events are the GPU's fault and nobody's
    program's. Raises AgentRefused, after writing down who was turned away."""
    with transaction.atomic():
        if diagnostics.may_take_out(host, observed.diagnostics):
            locks.pools([host.pool_id])
        fresh = locks.hosts([host.pk])[host.pk]
        refusal = _refusal(fresh, observed, now)
        if refusal is None:
            _observe(fresh, observed, now, gpu_faults)
        else:
            note_refused_agent(
                fresh.pk, reason=refusal.reason, code=refusal.code, instance=observed.instance, boot_id=observed.boot_id,
                now=now,
            )  # fmt: skip
    if refusal is not None:
        raise refusal


def _refusal(host: Host, observed: Observed, now: datetime) -> AgentRefused | None:
    if observed.version != VERSION:
        return AgentRefused(f"version: {observed.version}; allowed: {VERSION}")
    if not host.credential_hash:
        return AgentRefused("the credential of this host was revoked: join again with a new token")
    if observed.instance != host.agent_instance:
        return AgentRefused(
            f"another agent has joined as {host.name}: join again with a new token to replace it", code="agent_second"
        )
    if len(observed.start) > LONGEST_START or len(observed.starts_before) > MOST_STARTS:
        return AgentRefused(f"start, starts_before: allowed are {LONGEST_START} characters and {MOST_STARTS} entries")
    if host.agent_start not in ("", observed.start, *observed.starts_before):
        return AgentRefused(
            f"this is a copy of the state folder of {host.name}: another agent has gone on with it since", code="agent_copy"
        )
    if observed.boot_id != host.boot_id and _may_still_keep(host, host.last_sync_at, now):
        return AgentRefused(
            f"an agent with the same identity runs on another boot of {host.name}: is this a clone?", retry=True,
            code="agent_copy",
        )  # fmt: skip
    problem = inventory.problem(host, observed.inventory) or volumes.problem(observed.homes)
    return AgentRefused(problem, retry=True) if problem else None


def _may_still_keep(host: Host, heard_at: datetime | None, now: datetime) -> bool:
    """May shims of an agent that was last heard at ``heard_at`` still keep work of this host?"""
    return heard_at is not None and now - heard_at < timedelta(seconds=leases.silent_after([host])[host.pk])


def _observe(host: Host, observed: Observed, now: datetime, gpu_faults: Collection[str]) -> None:
    heard_before = host.last_sync_at
    rebooted = observed.boot_id != host.boot_id
    inventory.write(host, observed.inventory, now)
    diagnostics.take_in(host, observed.diagnostics, now)
    geometry.take_in(host, observed.geometries, now)
    seen = {key: run for run in observed.runs if (key := public_id(run.run)) is not None}
    _take_in_runs(host, seen, heard_before, rebooted, now, gpu_faults)
    if rebooted:
        _forgive_reboot(host, observed)
    Host.objects.filter(pk=host.pk).update(
        last_sync_at=now, boot_id=observed.boot_id[:64], agent_version=observed.agent_version[:40],
        agent_start=observed.start or host.agent_start,
    )  # fmt: skip
    renew_lease(host, seen, now)
    if observed.homes is not None:
        volumes.write(host, observed.homes, now)


def _forgive_reboot(host: Host, observed: Observed) -> None:
    """The boot that was turned away while the one before might still be there is the host's now: it was a reboot and no copy."""
    refused = host.refused_agent or {}
    if (refused.get("instance"), refused.get("boot_id")) == (observed.instance[:64], observed.boot_id[:64]):
        Host.objects.filter(pk=host.pk).update(refused_agent=None)
        nudge.pages(nudge.HOSTS)


def _take_in_runs(
    host: Host, seen: dict[uuid.UUID, RunSeen], heard_before: datetime | None, rebooted: bool, now: datetime,
    gpu_faults: Collection[str],
) -> None:  # fmt: skip
    rows = Run.objects.filter(host=host).exclude(state=RunState.ENDED).select_related("workload").order_by("pk")
    left = _left_behind(host)
    pairs = [(run, None if run.pk in left else _told(seen, run)) for run in rows]
    # Locked before anything is written, and all at once: two hosts of a gang report at the same time.
    workloads = locks.workloads(run.workload_id for run, told in pairs if _may_change(run, told))
    prepared = {run.workload_id for run, told in pairs if told is not None and _newly_prepared(run, told)}
    # Whoever joins as this host does not speak for what the agent before it left, which may be on another machine.
    elsewhere = _may_still_keep(host, host.agent_before_heard_at, now)
    for run, told in pairs:
        if told is not None:
            _take_in(run, told, heard_before, now, gpu_faults)
        elif run.workload_id in workloads and not elsewhere:
            _take_in_absence(run, heard_before, rebooted, now, is_left=run.pk in left)
    for workload in workloads.values():
        attempts.settle(workload, now)
        _stop_when_saved(workload, now)
        if workload.pk in prepared:
            gangs.let_go(workload)


def _left_behind(host: Host) -> set[int]:
    """Live runs that were told to another agent, before this one joined (``services.agents``): it says nothing about them.

    One that is only placed is left as well, and waits as long: what should be so is pushed to agents, so that one may have begun it
    after its last word, and no row tells that it did not. An operator who attests that the machine is off knows.
    """
    if host.agent_before_heard_at is None:
        return set()
    starts = Command.objects.filter(host=host, verb=Command.Verb.START, done_at__isnull=False)
    return set(starts.exclude(run__state=RunState.ENDED).values_list("run_id", flat=True))


def _told(seen: dict[uuid.UUID, RunSeen], run: Run) -> RunSeen | None:
    told = seen.get(run.public_id)
    return told if told is not None and told.generation == run.generation else None


def _may_change(run: Run, told: RunSeen | None) -> bool:
    """Could this change the workload, beyond what people only look at?"""
    return (
        told is None
        or told.state != run.state
        or told.saved != run.saved
        or _new_checkpoint(run, told) is not None
        or _newly_prepared(run, told)
    )


def _newly_prepared(run: Run, told: RunSeen) -> bool:
    return told.prepared and run.prepared_at is None


def _take_in(
    run: Run, told: RunSeen, heard_before: datetime | None, now: datetime, gpu_faults: Collection[str]
) -> None:
    _take_in_details(run, told, now)
    if told.state == RunState.ENDED:
        at = moment(told.ended_at) or now
        if heard_before is not None and run.state != RunState.PLACED:
            at = max(at, heard_before)  # it was there at the last frame, whatever the host's clock says
        outcome = _outcome(run, told)
        events = _failed_of(told, gpu_faults) if outcome == Code.FAILED else []
        outcome = str(Code.GPU_ERROR) if events else outcome
        attempts.end_run(run, outcome=outcome, exit_code=told.exit_code, at=at, now=now, gpu_events=events)
    elif told.state in (RunState.STARTING, RunState.RUNNING, RunState.STOPPING):
        attempts.advance_run(run, RunState(told.state), now)


def _failed_of(told: RunSeen, gpu_faults: Collection[str]) -> list[str]:
    """What its GPUs told that no program brings about, so that one which failed then has failed of it."""
    return sorted({code for code in told.gpu_events if code in gpu_faults})


def is_news(run: Run, told: RunSeen, now: datetime) -> bool:
    """Would taking this in write anything?"""
    return _may_change(run, told) or bool(_details(run, told, now))


def _details(run: Run, told: RunSeen, now: datetime) -> dict[str, Any]:
    """What people see of a run, and its checkpoints, as far as it is new."""
    facts: dict[str, Any] = {}
    if told.step and told.step[:KEPT_STEP] != run.step:
        facts["step"] = told.step[:KEPT_STEP]
    if _newly_prepared(run, told):
        facts["prepared_at"] = now
    if told.ready and run.ready_at is None:
        facts["ready_at"] = now
    if told.activity and told.activity != run.activity:
        facts["activity"] = told.activity
    if run.missing_since is not None:
        facts["missing_since"] = None
    if told.saved != run.saved:
        facts["saved"] = told.saved
    checkpoint = _new_checkpoint(run, told)
    if checkpoint is not None:
        at = min(checkpoint, now)  # never ahead of us, and a later one never earlier: money goes by it
        facts["checkpoint_at"], facts["checkpoint_told"] = max(at, run.checkpoint_at or at), checkpoint
    return facts


def _take_in_details(run: Run, told: RunSeen, now: datetime) -> None:
    facts = _details(run, told, now)
    if "checkpoint_at" in facts:
        Workload.objects.filter(pk=run.workload_id).update(checkpoint_at=facts["checkpoint_at"])
    if facts:
        Run.objects.filter(pk=run.pk).update(**facts)
        if facts.keys() & {"step", "ready_at", "checkpoint_at"}:
            nudge.pages(nudge.workload_topic(run.workload.public_id))


def _new_checkpoint(run: Run, told: RunSeen) -> datetime | None:
    """When, by its host's clock: two such times tell one acknowledgement from another, and are compared with no time of ours."""
    checkpoint = moment(told.checkpoint_at)
    return checkpoint if checkpoint != run.checkpoint_told else None


def _stop_when_saved(workload: Workload, now: datetime) -> None:
    """One that was given notice has nothing to wait for once all its runs have acknowledged a checkpoint since. Their hosts say so:
    no two clocks are compared."""
    if workload.state == WorkloadState.NOTICE and all(run.saved for run in commands.live_runs(workload)):
        commands.stop(workload, code=workload.stop_requested, grace_seconds=workload.pool.grace_seconds, now=now)


def _take_in_absence(run: Run, heard_before: datetime | None, rebooted: bool, now: datetime, *, is_left: bool) -> None:
    """The agent does not name a run of its host. One that was only placed may be on its way to it, unless it was to another."""
    was_begun = run.state != RunState.PLACED or is_left
    if not was_begun and not run.commands.filter(verb=Command.Verb.STOP).exists():
        return
    # Told from two earlier frames, so that a clock that was set since the last one takes nobody's work away.
    since, until = run.missing_since, heard_before or now
    waited = since is not None and until - since >= timedelta(seconds=MISSING_SECONDS)
    if rebooted or waited:
        outcome = Code.HOST_LOST if was_begun else Code.CANCELLED
        attempts.end_run(run, outcome=outcome, exit_code=None, at=now, now=now)
    elif run.missing_since is None:
        Run.objects.filter(pk=run.pk).update(missing_since=now)


def renew_lease(host: Host, seen: dict[uuid.UUID, RunSeen], now: datetime) -> None:
    """A host that was silent is trusted again once nothing runs there that ended here meanwhile."""
    old = LeaseState(host.lease_state)
    if old == LeaseState.ALIVE:
        return
    if old == LeaseState.SILENT and _holds_what_ended(host, seen):
        return
    if change_state(host, "lease_state", old=old, new=LeaseState.ALIVE, silent_since=None):
        record_host_change(host, "its agent speaks", now)


def _holds_what_ended(host: Host, seen: dict[uuid.UUID, RunSeen]) -> bool:
    there = [key for key, run in seen.items() if run.state != RunState.ENDED]
    return Run.objects.filter(host=host, public_id__in=there, state=RunState.ENDED).exists()


def _outcome(run: Run, told: RunSeen) -> str:
    if told.outcome == Code.START_FAILED and told.started_at is None and run.running_at is not None:
        return str(Code.HOST_LOST)  # it did start: its host knows no more of it, since this database was restored
    if told.prolog_failed and told.outcome == Code.START_FAILED:
        return str(Code.PROLOG_FAILED)
    if told.host_full and told.outcome == Code.START_FAILED:
        return str(Code.HOST_FULL)
    if told.gpu_unreadable and told.outcome == Code.START_FAILED:
        return str(Code.GPU_UNREADABLE)
    if told.host_full and told.outcome == Code.OUT_OF_DISK:
        return str(Code.DISK_RAN_LOW)
    known = {code.value for code in Code}
    if told.outcome in known:
        return told.outcome
    return str(Code.FINISHED if told.exit_code == 0 else Code.FAILED)


# -- silence -------------------------------------------------------------------------------------------------------------


def lose_host(host: Host, now: datetime) -> None:
    """Its lease, grace and margin are over: what it held has ended by the shims' own clocks. Inside a transaction, host locked."""
    runs = list(Run.objects.filter(host=host).exclude(state=RunState.ENDED).order_by("pk"))
    workloads = locks.workloads(run.workload_id for run in runs)
    for run in runs:
        attempts.end_run(run, outcome=Code.HOST_LOST, exit_code=None, at=now, now=now)
    for workload in workloads.values():
        attempts.settle(workload, now)


# -- desired -------------------------------------------------------------------------------------------------------------

STRENGTH = {Command.Verb.START: 0, Command.Verb.NOTICE: 1, Command.Verb.STOP: 2}


def desired(host: Host, now: datetime) -> Desired:
    """Everything that should be so on this host: one entry per run with an open command, with the strongest of its verbs.

    ``committed_sequence`` is left at 0 for the edge to fill from telemetry. Raises AgentRefused when the credential was revoked.
    """
    if not host.credential_hash:
        raise AgentRefused("the credential of this host was revoked: join again with a new token")
    return wanted_of(host, Pool.objects.get(pk=host.pool_id), now)


def wanted_of(
    host: Host, pool: Pool, now: datetime, *, has_commands: bool = True, has_diagnostics: bool = True,
    has_geometries: bool = True,
) -> Desired:
    """``desired`` of a host whose credential is good and whose pool is known, where it may be known too that nothing is open."""
    strongest = _strongest(host) if has_commands else {}
    uuids = _unit_uuids(strongest) if strongest else {}
    places = gangs.places(command.run for command in strongest.values())
    rules = leases.rules()
    renewed = renewed_credential(host, now=now)
    return Desired(
        version=VERSION,
        host=host.name,
        lease_seconds=rules.lease_seconds,
        runs=[_wanted(command, uuids[run], places.get(run)) for run, command in sorted(strongest.items())],
        credential=renewed.text if renewed else "",
        credential_expires_at=renewed.expires_at.timestamp() if renewed else None,
        challenge=due_challenge(host, now=now),
        poll_seconds=rules.poll_seconds,
        diagnostics=diagnostics.wanted_of(host, pool) if has_diagnostics else [],
        geometries=geometry.wanted_of(host) if has_geometries else [],
        stray_action=pool.stray_action,
    )


def _strongest(host: Host) -> dict[int, Command]:
    """Of each run with open commands the strongest, with all that is told of it. One whose start is not open is another agent's."""
    strongest: dict[int, Command] = {}
    rows = Command.objects.filter(host=host, done_at__isnull=True).order_by("run_id", "pk")
    rows = rows.select_related("run__workload__project__team", "run__workload__owner", "run__workload__pool")
    started = {command.run_id for command in rows if command.verb == Command.Verb.START}
    for command in rows:
        if command.run_id not in started:
            continue
        best = strongest.get(command.run_id)
        if best is None or STRENGTH[Command.Verb(command.verb)] > STRENGTH[Command.Verb(best.verb)]:
            strongest[command.run_id] = command
    return strongest


def _unit_uuids(runs: Iterable[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    rows = Allocation.objects.filter(run__in=list(runs)).order_by("unit__gpu__index", "slots")
    for run, unit in rows.values_list("run_id", "unit__uuid"):
        found[run].append(unit)
    return found


def _user(team: Team) -> dict[str, Any]:
    """The team's user on every host, so that hosts that share homes agree: from its row's number, which no other team ever gets.
    The moment it was made tells it from a team that gets the same number after an older backup was restored."""
    return {
        "team_id": f"{team.pk}.{int(team.created_at.timestamp())}",
        "team_user": settings.GPUPOOL_FIRST_TEAM_USER + team.pk,
    }


def _wanted(command: Command, unit_uuids: list[str], gang: GangWanted | None) -> RunWanted:
    run, workload = command.run, command.run.workload
    is_notebook = workload.kind == WorkloadKind.NOTEBOOK
    return RunWanted(
        run=str(run.public_id),
        workload=str(workload.public_id),
        generation=run.generation,
        verb=command.verb,
        code=command.code,
        stop_at=command.stop_at.timestamp() if command.stop_at else None,
        grace_seconds=float(run.grace_seconds),
        kind=workload.kind,
        command=workload.command,
        environment={str(name): str(value) for name, value in workload.environment.items()},
        unit_uuids=unit_uuids,
        owner=workload.owner.get_username(),
        team=workload.project.team.slug,
        **_user(workload.project.team),
        secret=workspace_secret(run.public_id) if is_notebook else "",
        attempt=run.attempt,
        cpu_milli=workload.cpu_milli,
        memory_mib=workload.memory_mib,
        max_runtime_seconds=workload.max_runtime_seconds,
        array_index=workload.array_index,
        gang=gang,
    )
