"""Desired state against observed state, host by host. Level-triggered: each frame says all that is so, so a lost, doubled, late or
reordered one changes nothing that the next does not put right."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from agent.protocol import VERSION, Observed, RunSeen
from scheduler.coordination import leases, locks
from scheduler.core.reasons import ReasonCode
from scheduler.models import Command, Host, Run, Workload
from scheduler.runs import attempts, commands, gangs
from scheduler.services.host_credentials import record_rejected_agent
from scheduler.services.hosts import record_host_change
from scheduler.state import nudge
from scheduler.state.states import LeaseState, RunState, WorkloadState, change_state
from scheduler.sync import geometry_changes, gpu_diagnostics, home_volumes, host_inventory
from scheduler.sync.wire_values import parse_public_id, parse_timestamp

MISSING_RUN_SECONDS = 10  # a run that its agent has not named for so long is not there
MAX_STEP_LENGTH = 200  # characters
MAX_START_LENGTH, MAX_STARTS = 64, 32


class AgentRejected(Exception):
    """The server's clear no to an agent. ``retry`` says whether asking again later may help."""

    def __init__(self, reason: str, retry: bool = False, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.code = code  # agent_copy or agent_second: people have to choose between two agents


# -- observed ------------------------------------------------------------------------------------------------------------


def observe(host: Host, observed: Observed, now: datetime, gpu_faults: Collection[str] = ()) -> None:
    """Take in what an agent reports of its host. ``gpu_faults``: which codes of hardware events are the GPU's fault and nobody's
    program's. Raises AgentRejected, after writing down who was turned away."""
    with transaction.atomic():
        if gpu_diagnostics.may_take_gpu_out(host, observed.diagnostics):
            locks.pools([host.pool_id])
        fresh = locks.hosts([host.pk])[host.pk]
        refusal = _rejection(fresh, observed, now)
        if refusal is None:
            _observe(fresh, observed, now, gpu_faults)
        else:
            record_rejected_agent(
                fresh.pk,
                reason=refusal.reason,
                code=refusal.code,
                instance=observed.instance,
                boot_id=observed.boot_id,
                now=now,
            )
    if refusal is not None:
        raise refusal


def _rejection(host: Host, observed: Observed, now: datetime) -> AgentRejected | None:
    if observed.version != VERSION:
        return AgentRejected(f"version: {observed.version}; allowed: {VERSION}")
    if not host.credential_hash:
        return AgentRejected("the credential of this host was revoked: join again with a new token")
    if observed.instance != host.agent_instance:
        return AgentRejected(
            f"another agent has joined as {host.name}: join again with a new token to replace it",
            code="agent_second",
        )
    if len(observed.start) > MAX_START_LENGTH or len(observed.starts_before) > MAX_STARTS:
        return AgentRejected(
            f"start, starts_before: allowed are {MAX_START_LENGTH} characters and {MAX_STARTS} entries"
        )
    if host.agent_start not in ("", observed.start, *observed.starts_before):
        return AgentRejected(
            f"this is a copy of the state folder of {host.name}: another agent has gone on with it since",
            code="agent_copy",
        )
    if observed.boot_id != host.boot_id and _may_still_run(host, host.last_sync_at, now):
        return AgentRejected(
            f"an agent with the same identity runs on another boot of {host.name}: is this a clone?",
            retry=True,
            code="agent_copy",
        )
    problem = host_inventory.inventory_problem(host, observed.inventory) or home_volumes.homes_problem(
        observed.homes
    )
    return AgentRejected(problem, retry=True) if problem else None


def _may_still_run(host: Host, heard_at: datetime | None, now: datetime) -> bool:
    """May shims of an agent that was last heard at ``heard_at`` still keep work of this host?"""
    return heard_at is not None and now - heard_at < timedelta(
        seconds=leases.silence_limits_seconds([host])[host.pk]
    )


def _observe(host: Host, observed: Observed, now: datetime, gpu_faults: Collection[str]) -> None:
    heard_before = host.last_sync_at
    rebooted = observed.boot_id != host.boot_id
    host_inventory.store_inventory(host, observed.inventory, now)
    gpu_diagnostics.store_diagnostics(host, observed.diagnostics, now)
    geometry_changes.store_geometries(host, observed.geometries, now)
    seen = {key: run for run in observed.runs if (key := parse_public_id(run.run)) is not None}
    _store_runs(host, seen, heard_before, rebooted, now, gpu_faults)
    if rebooted:
        _clear_reboot_rejection(host, observed)
    Host.objects.filter(pk=host.pk).update(
        last_sync_at=now,
        boot_id=observed.boot_id[:64],
        agent_version=observed.agent_version[:40],
        agent_start=observed.start or host.agent_start,
    )
    renew_lease(host, seen, now)
    if observed.homes is not None:
        home_volumes.store_homes(host, observed.homes, now)


def _clear_reboot_rejection(host: Host, observed: Observed) -> None:
    """The boot that was turned away while the one before might still be there is the host's now: it was a reboot and no copy."""
    refused = host.refused_agent or {}
    if (refused.get("instance"), refused.get("boot_id")) == (observed.instance[:64], observed.boot_id[:64]):
        Host.objects.filter(pk=host.pk).update(refused_agent=None)
        nudge.pages(nudge.HOSTS)


def _store_runs(
    host: Host,
    seen: dict[uuid.UUID, RunSeen],
    heard_before: datetime | None,
    rebooted: bool,
    now: datetime,
    gpu_faults: Collection[str],
) -> None:
    rows = (
        Run.objects.filter(host=host).exclude(state=RunState.ENDED).select_related("workload").order_by("pk")
    )
    left = _runs_of_previous_agent(host)
    pairs = [(run, None if run.pk in left else _reported_run(seen, run)) for run in rows]
    # Locked before anything is written, and all at once: two hosts of a gang report at the same time.
    workloads = locks.workloads(run.workload_id for run, told in pairs if _may_change(run, told))
    prepared = {run.workload_id for run, told in pairs if told is not None and _newly_prepared(run, told)}
    # Whoever joins as this host does not speak for what the agent before it left, which may be on another machine.
    elsewhere = _may_still_run(host, host.agent_before_heard_at, now)
    for run, told in pairs:
        if told is not None:
            _store_run(run, told, heard_before, now, gpu_faults)
        elif run.workload_id in workloads and not elsewhere:
            _store_missing_run(run, heard_before, rebooted, now, is_left=run.pk in left)
    for workload in workloads.values():
        attempts.settle_workload(workload, now)
        _stop_when_saved(workload, now)
        if workload.pk in prepared:
            gangs.release_gang(workload)


def _runs_of_previous_agent(host: Host) -> set[int]:
    """Live runs that were told to another agent, before this one joined (``services.agents``): it says nothing about them.

    One that is only placed is left as well, and waits as long: what should be so is pushed to agents, so that one may have begun it
    after its last word, and no row tells that it did not. An operator who attests that the machine is off knows.
    """
    if host.agent_before_heard_at is None:
        return set()
    starts = Command.objects.filter(host=host, verb=Command.Verb.START, done_at__isnull=False)
    return set(starts.exclude(run__state=RunState.ENDED).values_list("run_id", flat=True))


def _reported_run(seen: dict[uuid.UUID, RunSeen], run: Run) -> RunSeen | None:
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


def _store_run(
    run: Run, told: RunSeen, heard_before: datetime | None, now: datetime, gpu_faults: Collection[str]
) -> None:
    _store_run_details(run, told, now)
    if told.state == RunState.ENDED:
        at = parse_timestamp(told.ended_at) or now
        if heard_before is not None and run.state != RunState.PLACED:
            at = max(at, heard_before)  # it was there at the last frame, whatever the host's clock says
        outcome = _outcome(run, told)
        events = _gpu_fault_events(told, gpu_faults) if outcome == ReasonCode.FAILED else []
        outcome = str(ReasonCode.GPU_ERROR) if events else outcome
        attempts.end_run(run, outcome=outcome, exit_code=told.exit_code, at=at, now=now, gpu_events=events)
    elif told.state in (RunState.STARTING, RunState.RUNNING, RunState.STOPPING):
        attempts.advance_run(run, RunState(told.state), now)


def _gpu_fault_events(told: RunSeen, gpu_faults: Collection[str]) -> list[str]:
    """What its GPUs told that no program brings about, so that one which failed then has failed of it."""
    return sorted({code for code in told.gpu_events if code in gpu_faults})


def has_changes(run: Run, told: RunSeen, now: datetime) -> bool:
    """Would taking this in write anything?"""
    return _may_change(run, told) or bool(_details(run, told, now))


def _details(run: Run, told: RunSeen, now: datetime) -> dict[str, Any]:
    """What people see of a run, and its checkpoints, as far as it is new."""
    facts: dict[str, Any] = {}
    if told.step and told.step[:MAX_STEP_LENGTH] != run.step:
        facts["step"] = told.step[:MAX_STEP_LENGTH]
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


def _store_run_details(run: Run, told: RunSeen, now: datetime) -> None:
    facts = _details(run, told, now)
    if "checkpoint_at" in facts:
        Workload.objects.filter(pk=run.workload_id).update(checkpoint_at=facts["checkpoint_at"])
    if facts:
        Run.objects.filter(pk=run.pk).update(**facts)
        if facts.keys() & {"step", "ready_at", "checkpoint_at"}:
            nudge.pages(nudge.workload_topic(run.workload.public_id))


def _new_checkpoint(run: Run, told: RunSeen) -> datetime | None:
    """When, by its host's clock: two such times tell one acknowledgement from another, and are compared with no time of ours."""
    checkpoint = parse_timestamp(told.checkpoint_at)
    return checkpoint if checkpoint != run.checkpoint_told else None


def _stop_when_saved(workload: Workload, now: datetime) -> None:
    """One that was given notice has nothing to wait for once all its runs have acknowledged a checkpoint since. Their hosts say so:
    no two clocks are compared."""
    if workload.state == WorkloadState.NOTICE and all(run.saved for run in commands.live_runs(workload)):
        commands.order_stop(
            workload, code=workload.stop_requested, grace_seconds=workload.pool.grace_seconds, now=now
        )


def _store_missing_run(
    run: Run, heard_before: datetime | None, rebooted: bool, now: datetime, *, is_left: bool
) -> None:
    """The agent does not name a run of its host. One that was only placed may be on its way to it, unless it was to another."""
    was_begun = run.state != RunState.PLACED or is_left
    if not was_begun and not run.commands.filter(verb=Command.Verb.STOP).exists():
        return
    # Told from two earlier frames, so that a clock that was set since the last one takes nobody's work away.
    since, until = run.missing_since, heard_before or now
    waited = since is not None and until - since >= timedelta(seconds=MISSING_RUN_SECONDS)
    if rebooted or waited:
        outcome = ReasonCode.HOST_LOST if was_begun else ReasonCode.CANCELLED
        attempts.end_run(run, outcome=outcome, exit_code=None, at=now, now=now)
    elif run.missing_since is None:
        Run.objects.filter(pk=run.pk).update(missing_since=now)


def renew_lease(host: Host, seen: dict[uuid.UUID, RunSeen], now: datetime) -> None:
    """A host that was silent is trusted again once nothing runs there that ended here meanwhile."""
    old = LeaseState(host.lease_state)
    if old == LeaseState.ALIVE:
        return
    if old == LeaseState.SILENT and _has_ended_runs(host, seen):
        return
    if change_state(host, "lease_state", old=old, new=LeaseState.ALIVE, silent_since=None):
        record_host_change(host, "its agent speaks", now)


def _has_ended_runs(host: Host, seen: dict[uuid.UUID, RunSeen]) -> bool:
    there = [key for key, run in seen.items() if run.state != RunState.ENDED]
    return Run.objects.filter(host=host, public_id__in=there, state=RunState.ENDED).exists()


def _outcome(run: Run, told: RunSeen) -> str:
    if told.outcome == ReasonCode.START_FAILED and told.started_at is None and run.running_at is not None:
        return str(
            ReasonCode.HOST_LOST
        )  # it did start: its host knows no more of it, since this database was restored
    if told.prolog_failed and told.outcome == ReasonCode.START_FAILED:
        return str(ReasonCode.PROLOG_FAILED)
    if told.host_full and told.outcome == ReasonCode.START_FAILED:
        return str(ReasonCode.HOST_FULL)
    if told.gpu_unreadable and told.outcome == ReasonCode.START_FAILED:
        return str(ReasonCode.GPU_UNREADABLE)
    if told.host_full and told.outcome == ReasonCode.OUT_OF_DISK:
        return str(ReasonCode.DISK_RAN_LOW)
    known = {code.value for code in ReasonCode}
    if told.outcome in known:
        return told.outcome
    return str(ReasonCode.FINISHED if told.exit_code == 0 else ReasonCode.FAILED)


# -- silence -------------------------------------------------------------------------------------------------------------


# -- desired -------------------------------------------------------------------------------------------------------------
