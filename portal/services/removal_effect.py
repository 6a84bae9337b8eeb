"""Describe the effect of a removal or of the move of a host, for its preview."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from portal.models import Submission, SubmissionState
from portal.wording import removal_texts
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, Quota, Reservation, Team


@dataclass(frozen=True)
class RemovalEffect:
    """The effect of a removal or a move.

    ``refused`` is the reason why the operation would be refused now; empty if it would succeed. ``gpus`` is
    the number of GPUs that leave the pool. ``reservations`` are active on the host and get other units.
    ``unkept`` are reservations that the pool cannot keep without the host. A removal ends ``quotas``; a move
    keeps the quotas and lists them for both pools. ``submissions`` wait for approval and are withdrawn.
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
    """Run the operation's check and return its refusal: ``code``, ``refused``, ``numbers``; {} if none."""
    try:
        check()
    except OperationRejected as rejected:
        return {
            "code": rejected.code,
            "refused": refusal_sentence(rejected),
            "numbers": rejected.numbers,
        }
    return {}


def waiting_submissions(**of: Pool | Team) -> list[Submission]:
    """Return the submissions of a pool or a team that wait for approval."""
    rows = Submission.objects.filter(state=SubmissionState.WAITING, **of)
    return list(rows.select_related("author", "team").order_by("created_at", "pk"))


def withdraw_submissions(**of: Pool | Team) -> set[str]:
    """Withdraw the waiting submissions of a pool or a team that is removed; return their authors' names.

    An approval locks its submission, then the pool. So call this function before the removal, which locks
    the pool, and again after the removal, for requests that were submitted in between.
    """
    rows = waiting_submissions(**of)
    ids = [row.pk for row in rows]
    Submission.objects.filter(pk__in=ids, state=SubmissionState.WAITING).update(
        state=SubmissionState.WITHDRAWN
    )
    return {row.author.username for row in rows}
