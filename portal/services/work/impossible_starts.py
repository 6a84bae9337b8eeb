"""Refuse requests that could never start.

Accept requests that could start with a larger quota, and warn about them.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

from django.contrib.auth.base_user import AbstractBaseUser

from portal.answer_cache import cached_answer
from portal.errors import Invalid
from portal.hardware_request import field_to_change, network_warnings
from portal.input_checks import display_value
from portal.models import User
from portal.wording import reason_texts
from scheduler import services as scheduling
from scheduler.models import Workload
from scheduler.requests import WorkloadRequest


def refuse_if_never_starts(actor: User, request: WorkloadRequest, now: datetime) -> None:
    """Raise Invalid if the request could never start, even with a larger quota.

    A request that could start with a larger quota is accepted. ``submission_warning`` returns a warning about
    it.
    """
    never = _cached_never_starts(request, actor, now)
    if never is not None and not never.may_be_granted:
        field = field_to_change(never.code, never.numbers)
        value = request.hardware_arguments()[field]
        raise Invalid(
            {field: reason_texts.never_starts_sentence(never.code, never.numbers, actor)},
            {field: display_value(value)},
        )


def submission_warning(workload: Workload, viewer: User, now: datetime) -> str:
    """Return warnings about a workload that was just submitted. The text is empty if there are none.

    There is a warning if the workload cannot start before its team gets a larger quota. There is another
    warning if its hosts could not communicate.
    """
    request = WorkloadRequest.from_row(workload)
    never = _cached_never_starts(request, workload.owner, now)
    warnings = (
        [] if never is None else [reason_texts.never_starts_sentence(never.code, never.numbers, viewer)]
    )
    return " ".join([*warnings, *network_warnings(workload.pool, request)])


def _cached_never_starts(
    request: WorkloadRequest, owner: AbstractBaseUser, now: datetime
) -> scheduling.ImpossibleStart | None:
    """Return why the request could never start. Return None if it could start.

    The result is cached, so that the planner runs only once for equal submissions.
    """
    rows = [getattr(row, "pk", None) for row in (request.pool, request.project, owner, request.reservation)]
    facts = [
        request.preemptible,
        request.priority,
        request.max_runtime_seconds,
        request.hardware_columns(),
    ]
    digest = hashlib.sha256(repr((rows, facts)).encode()).hexdigest()
    return cached_answer(
        ("never", digest), now, lambda: scheduling.impossible_start(request, owner=owner, now=now)
    )
