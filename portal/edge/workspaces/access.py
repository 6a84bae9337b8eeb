"""Decide which browser may reach which workspace.

The functions run in threads. The caller passes the time as ``now``.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F

from portal import policy
from portal.models import EntryCode, WorkspaceSession, hash_workspace_secret
from scheduler.models import Run, Workload, WorkloadKind
from scheduler.state.states import RunState, WorkloadState
from scheduler.sync import agent_api


class AccessRefusal(StrEnum):
    """The reasons why access to a workspace is refused."""

    ENTER = "enter"  # the browser has no workspace session, or the session has ended
    # The entry code was used before, has expired, belongs to another workspace, or its session has ended.
    CODE = "code"
    NOT_ALLOWED = "not_allowed"  # the signed-in user may not open this workload
    STARTING = "starting"
    ENDED = "ended"


@dataclass(frozen=True)
class WorkspaceGrant:
    """The access of a browser to a run.

    It contains the location of the run, and the secret that the run requires from the edge.
    """

    label: str
    workload: str
    run: str
    host: int
    secret: str
    first_page: str = "/"  # path of the page to open first


@dataclass(frozen=True)
class WorkspaceEntry:
    """The result of a redeemed entry code: the token of the new session, and the path of the first page."""

    token: str
    first_page: str


@dataclass(frozen=True)
class AccessDenied:
    why: AccessRefusal
    workload: str = ""  # public id; empty if the browser may not learn it


def redeem_entry_code(label: str, code: str, now: dt.datetime) -> WorkspaceEntry | AccessDenied:
    """Redeem an entry code, and return the new workspace session or the refusal.

    A conditional UPDATE marks the code as used. So if two browsers redeem it at the same time, only one
    succeeds.
    """
    with transaction.atomic():
        found = (
            EntryCode.objects.filter(
                code_hash=hash_workspace_secret(code),
                workload__workspace_origin__label=label,
                used_at__isnull=True,
                session_generation=F("user__session_generation"),
            )
            .filter(expires_at__gt=now)
            .select_related("user", "workload__project", "api_token__user__service_owner")
            .first()
        )
        if found is None or not EntryCode.objects.filter(pk=found.pk, used_at__isnull=True).update(
            used_at=now
        ):
            return AccessDenied(AccessRefusal.CODE)
        if found.api_token is not None and not found.api_token.is_in_force(now):
            return AccessDenied(AccessRefusal.CODE)
        if not policy.may(found.user, "workload.open", found.workload):
            return AccessDenied(AccessRefusal.NOT_ALLOWED)
        token = secrets.token_urlsafe(32)
        WorkspaceSession.objects.create(
            token_hash=hash_workspace_secret(token),
            user=found.user,
            workload=found.workload,
            session_key_hash=found.session_key_hash,
            api_token=found.api_token,
            created_at=now,
            session_generation=found.session_generation,
        )
    return WorkspaceEntry(token, landing_path(found.workload))


def landing_path(workload: Workload) -> str:
    """Return the path of the first page: JupyterLab for a notebook, ``/`` for a job."""
    return "/lab" if workload.kind == WorkloadKind.NOTEBOOK else "/"


def grants_by_token_hash(
    token_hashes: Iterable[str], now: dt.datetime
) -> dict[str, WorkspaceGrant | AccessDenied]:
    """Return the access or the refusal for each workspace cookie. Keys are the hashes of the cookies' tokens.

    The number of queries does not depend on the number of cookies, except for the queries of ``policy.may``.
    """
    wanted = set(token_hashes)
    oldest = now - dt.timedelta(seconds=settings.SESSION_COOKIE_AGE)
    sessions = (
        WorkspaceSession.objects.filter(token_hash__in=wanted, ended_at__isnull=True, created_at__gt=oldest)
        .filter(session_generation=F("user__session_generation"))
        .select_related(
            "user", "workload__project", "workload__workspace_origin", "api_token__user__service_owner"
        )
        .order_by("pk")
    )
    rows = list(sessions)
    alive = _portal_sessions_alive({row.session_key_hash for row in rows if row.session_key_hash}, now)
    runs = _newest_runs({row.workload_id for row in rows})
    answers: dict[str, WorkspaceGrant | AccessDenied] = dict.fromkeys(
        wanted, AccessDenied(AccessRefusal.ENTER)
    )
    for row in rows:
        if row.session_key_hash and row.session_key_hash not in alive:
            continue
        if row.api_token is not None and not row.api_token.is_in_force(now):
            continue
        answers[row.token_hash] = _grant_or_refusal(row, runs.get(row.workload_id))
    return answers


def _grant_or_refusal(session: WorkspaceSession, run: Run | None) -> WorkspaceGrant | AccessDenied:
    workload = session.workload
    public_id = str(workload.public_id)
    if not policy.may(session.user, "workload.open", workload):
        return AccessDenied(AccessRefusal.NOT_ALLOWED)
    if workload.state in (WorkloadState.ENDED, WorkloadState.STOPPING):
        return AccessDenied(AccessRefusal.ENDED, public_id)
    if workload.state not in (WorkloadState.RUNNING, WorkloadState.NOTICE):
        return AccessDenied(AccessRefusal.STARTING, public_id)
    if run is None or run.ready_at is None or run.state != RunState.RUNNING:
        return AccessDenied(AccessRefusal.STARTING, public_id)
    return WorkspaceGrant(
        label=workload.workspace_origin.label,
        workload=public_id,
        run=str(run.public_id),
        host=run.host_id,
        secret=agent_api.workspace_secret(run.public_id),
        first_page=landing_path(workload),
    )


def _newest_runs(workloads: set[int]) -> dict[int, Run]:
    found = (
        Run.objects.filter(workload__in=workloads, rank=0)
        .order_by("workload_id", "-attempt")
        .distinct("workload_id")
    )
    return {run.workload_id: run for run in found}


def _portal_sessions_alive(key_hashes: set[str], now: dt.datetime) -> set[str]:
    """Return the hashes in ``key_hashes`` that belong to an existing portal session.

    A workspace session ends together with its portal session.
    """
    if not key_hashes:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT hash FROM "
            "(SELECT encode(sha256(convert_to(session_key, 'UTF8')), 'hex') AS hash FROM django_session"
            " WHERE expire_date > %s) AS alive WHERE hash = ANY(%s)",
            [now, sorted(key_hashes)],
        )
        return {row[0] for row in cursor.fetchall()}
