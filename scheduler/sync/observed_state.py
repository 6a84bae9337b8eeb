"""Store the state that a host reports, and update the workloads of its runs.

Each report has the complete state of the host. So the next report repairs the effect of a report that was
lost, duplicated, late or out of order.
"""

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
from scheduler.sync.agent_rejections import AgentRejected
from scheduler.sync.wire_values import parse_public_id, parse_timestamp

MISSING_RUN_SECONDS = 10  # a run that is missing in the reports for this long is no longer on its host
MAX_STEP_LENGTH = 200  # characters
MAX_START_LENGTH, MAX_STARTS = 64, 32
MAX_MEASURED_USE = {"cpu_seconds": 1e12, "memory_peak_mib": 2**31 - 1}  # higher values are unknown


def observe(host: Host, observed: Observed, now: datetime, gpu_faults: Collection[str] = ()) -> None:
    """Store an agent's report of its host.

    ``gpu_faults`` are the codes of hardware events that a program never causes. Raises AgentRejected if the
    agent or the report is not accepted, after the rejection was recorded with the host.
    """
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
                code=refusal.quarantine_code,
                instance=observed.instance,
                boot_id=observed.boot_id,
                now=now,
            )
    if refusal is not None:
        raise refusal


def _rejection(host: Host, observed: Observed, now: datetime) -> AgentRejected | None:
    if observed.version != VERSION:
        return AgentRejected("version_unsupported", {"version": observed.version, "allowed": VERSION})
    if not host.credential_hash:
        return AgentRejected("credential_revoked")
    if observed.instance != host.agent_instance:
        return AgentRejected("agent_second", {"host": host.name})
    if len(observed.start) > MAX_START_LENGTH or len(observed.starts_before) > MAX_STARTS:
        return AgentRejected("starts_invalid", {"characters": MAX_START_LENGTH, "entries": MAX_STARTS})
    if host.agent_start not in ("", observed.start, *observed.starts_before):
        return AgentRejected("agent_copy", {"host": host.name})
    if observed.boot_id != host.boot_id and _may_still_run(host, host.last_sync_at, now):
        return AgentRejected("agent_on_another_boot", {"host": host.name}, retry=True)
    problem = host_inventory.inventory_problem(host, observed.inventory) or home_volumes.homes_problem(
        observed.homes
    )
    return AgentRejected("report_invalid", {"problem": problem}, retry=True) if problem else None


def _may_still_run(host: Host, heard_at: datetime | None, now: datetime) -> bool:
    """Return True if an agent whose last report was at ``heard_at`` may still run work.

    The supervisor processes (shims) of the agent stop the work only after the host's silence limit.
    """
    if heard_at is None:
        return False
    limit = timedelta(seconds=leases.silence_limits_seconds([host])[host.pk])
    if now - heard_at < limit:
        return True
    return now - leases.last_possible_renewal(heard_at, leases.memory_renewal_limit(now)) < limit


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
        # This statement may have waited while later leases were renewed.
        last_sync_at=max(host.last_sync_at or now, now),
        boot_id=observed.boot_id[:64],
        agent_version=observed.agent_version[:40],
        agent_start=observed.start or host.agent_start,
    )
    renew_lease(host, seen, now)
    if observed.homes is not None:
        home_volumes.store_homes(host, observed.homes, now)


def _clear_reboot_rejection(host: Host, observed: Observed) -> None:
    """Clear the recorded rejection of this boot, because it was a reboot and not a second machine.

    The reports of the new boot were rejected while the earlier boot might still have been running.
    """
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
    previous = _runs_of_previous_agent(host)
    pairs = [(run, None if run.pk in previous else _reported_run(seen, run)) for run in rows]
    # Lock all workloads at once before writing, because two hosts of a gang may report at the same time.
    workloads = locks.workloads(run.workload_id for run, reported in pairs if _may_change(run, reported))
    prepared = {
        run.workload_id for run, reported in pairs if reported is not None and _newly_prepared(run, reported)
    }
    # A new agent does not know the runs of the previous agent, which may still run on another machine.
    elsewhere = _may_still_run(host, host.agent_before_heard_at, now)
    for run, reported in pairs:
        if reported is not None:
            _store_run(run, reported, heard_before, now, gpu_faults)
        elif run.workload_id in workloads and not elsewhere:
            _store_missing_run(run, heard_before, rebooted, now, from_previous_agent=run.pk in previous)
    for workload in workloads.values():
        attempts.settle_workload(workload, now)
        _stop_when_saved(workload, now)
        if workload.pk in prepared:
            gangs.release_gang(workload)


def _runs_of_previous_agent(host: Host) -> set[int]:
    """Return the ids of live runs that the previous agent received before this agent joined.

    This agent does not report these runs. Placed runs are included, because the previous agent may have
    started them after its last report. The runs end when the previous agent's supervisor processes (shims)
    can no longer be alive. They end earlier if an operator states that the machine is off.
    """
    if host.agent_before_heard_at is None:
        return set()
    starts = Command.objects.filter(host=host, verb=Command.Verb.START, done_at__isnull=False)
    return set(starts.exclude(run__state=RunState.ENDED).values_list("run_id", flat=True))


def _reported_run(seen: dict[uuid.UUID, RunSeen], run: Run) -> RunSeen | None:
    told = seen.get(run.public_id)
    return told if told is not None and told.generation == run.generation else None


def _may_change(run: Run, told: RunSeen | None) -> bool:
    """Return True if the report may change the workload, and not only details of the run."""
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
            at = max(at, heard_before)  # the run was live in the last report, so it did not end earlier
        outcome = _outcome(run, told)
        events = _gpu_fault_events(told, gpu_faults) if outcome == ReasonCode.FAILED else []
        outcome = str(ReasonCode.GPU_ERROR) if events else outcome
        attempts.end_run(run, outcome=outcome, exit_code=told.exit_code, at=at, now=now, gpu_events=events)
    elif told.state in (RunState.STARTING, RunState.RUNNING, RunState.STOPPING):
        attempts.advance_run(run, RunState(told.state), now)


def _gpu_fault_events(told: RunSeen, gpu_faults: Collection[str]) -> list[str]:
    """Return the reported hardware events that a program never causes. They explain the run's failure."""
    return sorted({code for code in told.gpu_events if code in gpu_faults})


def has_changes(run: Run, told: RunSeen, now: datetime) -> bool:
    """Return True if storing the report of this run would write anything."""
    return _may_change(run, told) or bool(_details(run, told, now))


def _details(run: Run, told: RunSeen, now: datetime) -> dict[str, Any]:
    """Return the columns of a run that the report changes, without its state and outcome."""
    changes: dict[str, Any] = {}
    if told.step and told.step[:MAX_STEP_LENGTH] != run.step:
        changes["step"] = told.step[:MAX_STEP_LENGTH]
    if _newly_prepared(run, told):
        changes["prepared_at"] = now
    if told.ready and run.ready_at is None:
        changes["ready_at"] = now
    if told.activity and told.activity != run.activity:
        changes["activity"] = told.activity
    if run.missing_since is not None:
        changes["missing_since"] = None
    if told.saved != run.saved:
        changes["saved"] = told.saved
    if told.state == RunState.ENDED:
        changes |= _measured_use(told)
    checkpoint = _new_checkpoint(run, told)
    if checkpoint is not None:
        # Charges depend on this time, so it must not be after now or before the last checkpoint.
        at = min(checkpoint, now)
        changes["checkpoint_at"], changes["checkpoint_told"] = max(at, run.checkpoint_at or at), checkpoint
    return changes


def _measured_use(told: RunSeen) -> dict[str, Any]:
    """Return the CPU time and the peak memory of an ended run. An impossible value is unknown."""
    values = {"cpu_seconds": told.cpu_seconds, "memory_peak_mib": told.memory_peak_mib}
    return {
        name: value
        for name, value in values.items()
        if value is not None and 0 <= value <= MAX_MEASURED_USE[name]
    }


def _store_run_details(run: Run, told: RunSeen, now: datetime) -> None:
    changes = _details(run, told, now)
    if "checkpoint_at" in changes:
        Workload.objects.filter(pk=run.workload_id).update(checkpoint_at=changes["checkpoint_at"])
    if changes:
        Run.objects.filter(pk=run.pk).update(**changes)
        if changes.keys() & {"step", "ready_at", "checkpoint_at"}:
            nudge.pages(nudge.workload_topic(run.workload.public_id))


def _new_checkpoint(run: Run, told: RunSeen) -> datetime | None:
    """Return the time of a new checkpoint (by the host's clock), or None if there is no new checkpoint.

    A checkpoint is new if its time differs from the last reported time. The server's clock is not used.
    """
    checkpoint = parse_timestamp(told.checkpoint_at)
    return checkpoint if checkpoint != run.checkpoint_told else None


def _stop_when_saved(workload: Workload, now: datetime) -> None:
    """Stop a workload under notice when all its runs have saved a checkpoint since the notice.

    The agent reports this in ``saved``, so the clocks of host and server are not compared.
    """
    if workload.state == WorkloadState.NOTICE and all(run.saved for run in commands.live_runs(workload)):
        commands.order_stop(
            workload, code=workload.stop_requested, grace_seconds=workload.pool.grace_seconds, now=now
        )


def _store_missing_run(
    run: Run, heard_before: datetime | None, rebooted: bool, now: datetime, *, from_previous_agent: bool
) -> None:
    """End a live run that the agent does not report, after MISSING_RUN_SECONDS or after a reboot.

    A run that is only placed and has no stop command continues, because the agent may not have received its
    start command yet. ``from_previous_agent`` is True if an earlier agent of the host received the run.
    """
    was_started = run.state != RunState.PLACED or from_previous_agent
    if not was_started and not run.commands.filter(verb=Command.Verb.STOP).exists():
        return
    # The time is measured between two earlier reports. So a clock step after the last report ends no run.
    since, until = run.missing_since, heard_before or now
    waited = since is not None and until - since >= timedelta(seconds=MISSING_RUN_SECONDS)
    if rebooted or waited:
        outcome = ReasonCode.HOST_LOST if was_started else ReasonCode.CANCELLED
        attempts.end_run(run, outcome=outcome, exit_code=None, at=now, now=now)
    elif run.missing_since is None:
        Run.objects.filter(pk=run.pk).update(missing_since=now)


def renew_lease(host: Host, seen: dict[uuid.UUID, RunSeen], now: datetime) -> None:
    """Mark a host as alive.

    A silent host stays silent while it still reports live runs that have ended in the database.
    """
    old = LeaseState(host.lease_state)
    if old == LeaseState.ALIVE:
        return
    if old == LeaseState.SILENT and _has_ended_runs(host, seen):
        return
    if change_state(host, "lease_state", old=old, new=LeaseState.ALIVE, silent_since=None):
        record_host_change(host, "its agent reports", now)


def _has_ended_runs(host: Host, seen: dict[uuid.UUID, RunSeen]) -> bool:
    live = [key for key, run in seen.items() if run.state != RunState.ENDED]
    return Run.objects.filter(host=host, public_id__in=live, state=RunState.ENDED).exists()


# Not split: the first matching rule decides and the order of the rules matters.
def _outcome(run: Run, told: RunSeen) -> str:
    if told.outcome == ReasonCode.START_FAILED and told.started_at is None and run.running_at is not None:
        # The run ended after the backup was made from which the database was restored, and the host has
        # deleted its record of the run. The server then ordered the run again, and the host refused the start
        # because the run's generation was used before.
        return str(ReasonCode.HOST_LOST)
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
