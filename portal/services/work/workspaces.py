"""Open the web interface of a running workload on its own origin, with a one-time code."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from django.conf import settings
from django.db import transaction

from portal import policy
from portal.models import ApiToken, EntryCode, User, WorkspaceOrigin, hash_workspace_secret
from portal.redis_state.access_revocation import session_hash
from portal.services import audit
from scheduler.core.rejection import OperationRejected
from scheduler.models import Workload, WorkloadKind
from scheduler.state.states import WorkloadState

ENTRY_CODE_LIFETIME = timedelta(seconds=60)


def open_workspace(
    *,
    actor: User,
    workload: Workload,
    session_key: str,
    now: datetime,
    token: ApiToken | None = None,
    via: str = "web",
) -> str:
    """Return the URL that opens a running workload. It contains a one-time code that is valid for one minute.

    The URL has an origin of its own. ``session_key`` is the key of the portal session; when the person signs
    out of the portal, the workspace ends. A caller with an API ``token`` has no portal session, and
    ``session_key`` is empty; when the token is revoked, the workspace ends. Raises NotAllowed. Raises
    OperationRejected if the workload does not run.
    """
    policy.require(actor, "workload.open", workload)
    if workload.state not in (WorkloadState.RUNNING, WorkloadState.NOTICE):
        raise OperationRejected("workspace_is_not_running", {"name": workload.name, "state": workload.state})
    if workload.kind != WorkloadKind.NOTEBOOK and not _serves_http(workload):
        raise OperationRejected("job_serves_nothing", {"name": workload.name})
    code = secrets.token_urlsafe(32)
    with transaction.atomic():
        origin = workspace_origin(workload, now)
        EntryCode.objects.create(
            code_hash=hash_workspace_secret(code),
            user=actor,
            workload=workload,
            session_key_hash=session_hash(session_key) if session_key else "",
            api_token=token,
            created_at=now,
            expires_at=now + ENTRY_CODE_LIFETIME,
            session_generation=actor.session_generation,
        )
        audit.record(actor=actor, via=via, now=now, verb="open_workspace", target=workload)
    scheme = urlsplit(settings.GPUPOOL_EDGE_URL).scheme
    return f"{scheme}://{origin.label}.{settings.GPUPOOL_NOTEBOOK_DOMAIN}/.gpupool/enter?code={code}"


def _serves_http(workload: Workload) -> bool:
    """Return True if the current attempt of the workload serves HTTP on its first host."""
    return workload.runs.filter(attempt=workload.attempt, rank=0, ready_at__isnull=False).exists()


def workspace_origin(workload: Workload, now: datetime) -> WorkspaceOrigin:
    """Return the origin of the workload's workspace. The first call creates it with a random host name."""
    defaults = {"label": f"w{secrets.token_hex(12)}", "created_at": now}
    return WorkspaceOrigin.objects.get_or_create(workload=workload, defaults=defaults)[0]
