"""Renew the lease of a host that reports no changes, in one SQL statement.

Hosts report every few seconds, mostly without changes. For a report without changes, this module writes the
same values as ``scheduler.sync.observed_state``: the time of the report, and the state alive for a suspect
host. The statement also checks that nothing has changed, so no lock is held between a check and the write. If
anything may have changed, nothing is written and the caller uses ``observed_state``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from django.db import connection, transaction

from agent.protocol import VERSION, Desired, Observed
from scheduler.coordination import locks
from scheduler.coordination.clock_check import CLOCK_STEP_THRESHOLD, ClockSample
from scheduler.models import Host, Pool, Run
from scheduler.state.states import LeaseState, RunState
from scheduler.sync import desired_state, host_inventory, observed_state

# The UPDATE locks the host's row, as every other write of the row does.
RENEW_LEASE_SQL = """
UPDATE scheduler_host AS h SET last_sync_at = GREATEST(h.last_sync_at, %(now)s)
FROM scheduler_pool AS p
WHERE h.id = %(host)s AND p.id = h.pool_id
  AND h.credential_hash = ANY(%(credentials)s) AND h.credential_expires_at > %(now)s
  AND h.agent_instance = %(instance)s AND h.boot_id = %(boot)s AND h.agent_start = %(start)s
  AND h.agent_version = %(version)s
  AND h.lease_state IN ('alive', 'suspect')
  AND h.hardware->>'digest' = %(digest)s AND h.hardware->'applied' = 'true'::jsonb
  AND NOT EXISTS (
    SELECT FROM scheduler_run AS r
    WHERE r.host_id = h.id AND r.state <> 'ended'
      AND r.public_id::text || ' ' || r.generation || ' ' || r.state <> ALL(%(runs)s)
  )
  AND NOT EXISTS (
    SELECT FROM scheduler_clockreading AS c
    WHERE c.machine = %(machine)s
      AND abs(extract(epoch FROM %(now)s - c.wall) - (%(uptime)s - c.uptime)) >= %(set)s
  )
RETURNING h.name, h.lease_state, h.credential_hash, h.credential_expires_at, h.public_key,
  p.id, p.stray_action, p.diagnostic_tool, p.diagnostic_seconds,
  EXISTS (SELECT FROM scheduler_command AS c WHERE c.host_id = h.id AND c.done_at IS NULL),
  EXISTS (SELECT FROM scheduler_diagnostic AS d WHERE d.host_id = h.id AND d.state IN ('wanted', 'running')),
  EXISTS (SELECT FROM scheduler_geometrychange AS g WHERE g.host_id = h.id AND g.state = 'changing')
"""


def sync_if_unchanged(
    host_id: int, credentials: Sequence[str], observed: Observed, sample: ClockSample
) -> Desired | None:
    """Renew the lease and return the desired state, if the report has no changes.

    One of ``credentials`` must be the host's valid credential. Return None and write nothing if anything may
    have changed, or if the clock was set. Stray processes in the report are ignored here, because telemetry
    stores them.
    """
    now = sample.wall
    if not _has_no_news(observed):
        return None
    known = _unchanged_runs(host_id, observed, now)
    if known is None:
        return None
    with connection.cursor() as cursor:
        cursor.execute(
            RENEW_LEASE_SQL,
            {
                "host": host_id,
                "now": now,
                "instance": observed.instance,
                "boot": observed.boot_id,
                "start": observed.start,
                "version": observed.agent_version,
                "digest": host_inventory.inventory_digest(observed.inventory),
                "runs": known,
                "machine": sample.machine,
                "uptime": sample.uptime,
                "set": CLOCK_STEP_THRESHOLD.total_seconds(),
                "credentials": [hashlib.sha256(text.encode()).hexdigest() for text in credentials],
            },
        )
        row = cursor.fetchone()
    if row is None:
        return None
    name, lease_state, credential_hash, expires_at, public_key = row[:5]
    pool_id, stray_action, tool, seconds, has_commands, has_diagnostics, has_geometries = row[5:]
    if lease_state == LeaseState.SUSPECT:
        _restore_suspect_host(host_id, now)
    pool = Pool(pk=pool_id, stray_action=stray_action, diagnostic_tool=tool, diagnostic_seconds=seconds)
    host = Host(
        pk=host_id,
        pool=pool,
        name=name,
        credential_hash=credential_hash,
        credential_expires_at=expires_at,
        public_key=public_key,
    )
    return desired_state.desired_for_host(
        host,
        pool,
        now,
        has_commands=has_commands,
        has_diagnostics=has_diagnostics,
        has_geometries=has_geometries,
    )


def _restore_suspect_host(host_id: int, now: datetime) -> None:
    """Mark a suspect host as alive.

    After a short outage of the servers most hosts are suspect. So this case is handled here and not by the
    slower ``observed_state.observe``.
    """
    with transaction.atomic():
        host = locks.hosts([host_id])[host_id]
        if host.lease_state == LeaseState.SUSPECT and host.credential_hash:  # empty: just revoked
            observed_state.renew_lease(host, {}, now)


def _has_no_news(observed: Observed) -> bool:
    return (
        observed.version == VERSION
        and bool(observed.start)
        and observed.homes is None
        and not observed.diagnostics
        and not observed.geometries
    )


def _unchanged_runs(host_id: int, observed: Observed, now: datetime) -> list[str] | None:
    """Return the host's live runs as texts "id generation state", for the comparison in ``RENEW_LEASE_SQL``.

    Return None if a live run is missing in the report or differs from its row. Return an empty list if the
    report has no runs.
    """
    if not observed.runs:
        return []
    reported = {run.run: run for run in observed.runs}
    known = []
    for run in Run.objects.filter(host=host_id).exclude(state=RunState.ENDED):
        seen = reported.get(str(run.public_id))
        if seen is None or seen.generation != run.generation or observed_state.has_changes(run, seen, now):
            return None
        known.append(f"{run.public_id} {run.generation} {run.state}")
    return known
