"""Describe the effect of a removal, or of the move of a host, for a preview."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from portal.models import Submission, SubmissionState, User
from portal.wording import removal_texts
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, Quota, Reservation, Team


@dataclass(frozen=True)
class RemovalEffect:
    """The effect of a removal, or of the move of a host.

    - ``refused``: why the operation would be refused now; empty if it would succeed.
    - ``gpus``: the number of GPUs that leave the pool.
    - ``reservations``: active reservations on the host, which get other units.
    - ``unkept``: reservations that the pool cannot serve without the host.
    - ``quotas``: the quotas that a removal ends. For a move: the quotas of both pools, which do not change.
    - ``submissions``: waiting submissions, which the removal withdraws.
    """

    verb: str
    name: str
    code: str = ""
    refused: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    gpus: int = 0
    pool: str = ""
    reservations: list[Reservation] = field(default_factory=list)
    unkept: list[Reservation] = field(default_factory=list)
    quotas: list[Quota] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    projects: list[str] = field(default_factory=list)
    submissions: list[Submission] = field(default_factory=list)

    @property
    def text(self) -> str:
        return removal_texts.REMOVAL_VERBS[self.verb].text


def refusal_of(check: Callable[[], None]) -> dict[str, Any]:
    """Call ``check``, which raises OperationRejected if the operation would be refused.

    Return ``code``, ``refused`` (the reason as a sentence) and ``numbers`` of the refusal. Return an empty
    dict if the operation would succeed.
    """
    try:
        check()
    except OperationRejected as rejected:
        return {
            "code": rejected.code,
            "refused": refusal_sentence(rejected),
            "numbers": rejected.numbers,
        }
    return {}


def waiting_submissions(**of: Pool | Team | User) -> list[Submission]:
    """Return the submissions of a pool, a team or an author that wait for approval, oldest first."""
    rows = Submission.objects.filter(state=SubmissionState.WAITING, **of)
    return list(rows.select_related("author", "team").order_by("created_at", "pk"))


def withdraw_submissions(**of: Pool | Team | User) -> set[str]:
    """Withdraw the waiting submissions of a pool, a team or an author. Return the names of their authors.

    Call this function before and after the removal of the pool or team. The first call avoids a deadlock: an
    approval locks first the submission and then the pool, and the removal locks the pool. The second call
    withdraws submissions that were created between the first call and the removal.
    """
    rows = waiting_submissions(**of)
    ids = [row.pk for row in rows]
    Submission.objects.filter(pk__in=ids, state=SubmissionState.WAITING).update(
        state=SubmissionState.WITHDRAWN
    )
    return {row.author.username for row in rows}
