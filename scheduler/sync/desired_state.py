"""Build the desired state of a host: every run that the host should start, give a notice to or stop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.conf import settings

from agent.protocol import VERSION, Desired, GangWanted, PersonWanted, RunWanted
from scheduler.coordination import leases
from scheduler.models import Allocation, Command, Host, Pool, Team, WorkloadKind
from scheduler.runs import gangs
from scheduler.runs.workspace_secret import workspace_secret
from scheduler.services.host_credentials import due_challenge, renewed_credential
from scheduler.sync import geometry_changes, gpu_diagnostics
from scheduler.sync.agent_rejections import AgentRejected

MIB_PER_GIB = 1024
VERB_STRENGTH = {Command.Verb.START: 0, Command.Verb.NOTICE: 1, Command.Verb.STOP: 2}


def desired(host: Host, now: datetime) -> Desired:
    """Return the desired state of a host.

    It has one entry per run, with the strongest open command of the run: stop, then notice, then start.
    ``committed_sequence`` is 0, and the edge sets it from telemetry. Raises AgentRejected if the credential
    was revoked.
    """
    if not host.credential_hash:
        raise AgentRejected("credential_revoked")
    return desired_for_host(host, Pool.objects.get(pk=host.pool_id), now)


def desired_for_host(
    host: Host,
    pool: Pool,
    now: datetime,
    *,
    has_commands: bool = True,
    has_diagnostics: bool = True,
    has_geometries: bool = True,
) -> Desired:
    """Return the desired state of a host with a valid credential.

    Pass False for ``has_commands``, ``has_diagnostics`` or ``has_geometries`` if the caller knows that there
    are none. Each False saves a query.
    """
    strongest = _strongest(host) if has_commands else {}
    uuids = _unit_uuids(strongest) if strongest else {}
    places = gangs.gang_placements(command.run for command in strongest.values())
    rules = leases.lease_rules()
    renewed = renewed_credential(host, now=now)
    return Desired(
        version=VERSION,
        host=host.name,
        lease_seconds=rules.lease_seconds,
        runs=[
            _run_wanted(command, uuids[run], places.get(run), pool)
            for run, command in sorted(strongest.items())
            if host.person_users or not _needs_person_users(command)
        ],
        credential=renewed.text if renewed else "",
        credential_expires_at=renewed.expires_at.timestamp() if renewed else None,
        challenge=due_challenge(host, now=now),
        poll_seconds=rules.poll_seconds,
        diagnostics=gpu_diagnostics.desired_diagnostics(host, pool) if has_diagnostics else [],
        geometries=geometry_changes.desired_geometries(host) if has_geometries else [],
        stray_action=pool.stray_action,
    )


def _strongest(host: Host) -> dict[int, Command]:
    """Return the strongest open command of each run, by run id, loaded with its related rows.

    A run whose start command is closed belongs to an earlier agent of the host and is left out.
    """
    strongest: dict[int, Command] = {}
    rows = Command.objects.filter(host=host, done_at__isnull=True).order_by("run_id", "pk")
    rows = rows.select_related("run__workload__project__team", "run__workload__owner", "run__workload__pool")
    started = {command.run_id for command in rows if command.verb == Command.Verb.START}
    for command in rows:
        if command.run_id not in started:
            continue
        best = strongest.get(command.run_id)
        if best is None or VERB_STRENGTH[Command.Verb(command.verb)] > VERB_STRENGTH[Command.Verb(best.verb)]:
            strongest[command.run_id] = command
    return strongest


def _unit_uuids(runs: Iterable[int]) -> dict[int, list[str]]:
    uuids: dict[int, list[str]] = defaultdict(list)
    rows = Allocation.objects.filter(run__in=list(runs)).order_by("unit__gpu__index", "slots")
    for run, unit in rows.values_list("run_id", "unit__uuid"):
        uuids[run].append(unit)
    return uuids


def _needs_person_users(command: Command) -> bool:
    """Return True if the command starts work as the Unix user of its owner.

    A host that cannot do so never gets the command, because an older agent would start the work as the user
    of the team. The start then times out.
    """
    return command.verb == Command.Verb.START and command.run.workload.unix_identity is not None


def _team_user(team: Team) -> dict[str, Any]:
    """Return the id and the system user number of a team.

    Both are derived from the team's row id, so that all hosts that share homes use the same user. The id also
    has the team's creation time. After an older backup was restored, another team may get the same row id.
    The creation time then distinguishes the two teams.
    """
    return {
        "team_id": f"{team.pk}.{int(team.created_at.timestamp())}",
        "team_user": settings.GPUPOOL_FIRST_TEAM_USER + team.pk,
    }


def _run_wanted(command: Command, unit_uuids: list[str], gang: GangWanted | None, pool: Pool) -> RunWanted:
    run, workload = command.run, command.run.workload
    person = workload.unix_identity
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
        **_team_user(workload.project.team),
        secret=workspace_secret(run.public_id) if is_notebook else "",
        attempt=run.attempt,
        cpu_milli=workload.cpu_milli,
        memory_mib=workload.memory_mib,
        max_runtime_seconds=workload.max_runtime_seconds,
        array_index=workload.array_index,
        gang=gang,
        person=PersonWanted(**person) if person is not None else None,
        perf_events=pool.perf_events,
        home_limit_mib=(workload.project.team.home_limit_gib or pool.home_limit_gib or 0) * MIB_PER_GIB,
    )
