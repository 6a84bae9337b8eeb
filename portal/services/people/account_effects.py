"""Compute the effect of a change of an account before the change."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from allauth.mfa.models import Authenticator
from django.db.models import F

from portal import policy
from portal.models import ApiToken, LeaverWork, User, WorkspaceSession
from portal.services.people.account_security import work_of
from portal.services.people.accounts import reject_if_last_operator
from portal.services.people.leaving.leaver_work import policy_for
from portal.services.removal_effect import refusal_of
from portal.wording.people import account_texts
from scheduler.models import Workload
from scheduler.state.states import WorkloadState

CLOSING_VERBS = ("close_account", "remove_person")


@dataclass(frozen=True)
class AccountEffect:
    """The effect of a change of an account.

    ``running`` is work that holds GPUs, and ``waiting`` is work in the queue. ``workspaces`` is the number of
    open workspace sessions. ``tokens`` are the API tokens in force. ``refused`` is the reason why the change
    would be refused now; empty if it would succeed. ``work`` is the LeaverWork by which the work is settled;
    empty if it continues.
    """

    verb: str
    name: str
    running: list[Workload]
    waiting: list[Workload]
    workspaces: int
    tokens: list[ApiToken]
    second_factor: bool
    code: str = ""
    refused: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    work: str = ""

    @property
    def text(self) -> str:
        return account_texts.ACCOUNT_VERBS[self.verb].text

    @property
    def work_text(self) -> str:
        """Return what happens to the work of the person."""
        return account_texts.work_sentence(len(self.running), len(self.waiting), self.work)


def preview_account_change(*, actor: User, user: User, verb: str, now: datetime) -> AccountEffect:
    """Return the effect of the change ``verb``, a key of ``ACCOUNT_VERBS``. Raises NotAllowed.

    People may preview changes of their own account, which they make on their own pages.
    """
    if actor.pk != user.pk:
        policy.require(actor, "user.change")
    work = work_of(user)
    return AccountEffect(
        verb,
        user.username,
        running=[row for row in work if row.state != WorkloadState.QUEUED],
        waiting=[row for row in work if row.state == WorkloadState.QUEUED],
        workspaces=WorkspaceSession.objects.filter(
            user=user, ended_at=None, session_generation=F("user__session_generation")
        ).count(),
        tokens=list(tokens_in_force(user, now)),
        second_factor=Authenticator.objects.filter(user=user).exists(),
        work=_settled_by(user, verb),
        **(refusal_of(lambda: reject_if_last_operator(user, stays=False)) if verb in CLOSING_VERBS else {}),
    )


def _settled_by(user: User, verb: str) -> str:
    if verb == "stop_work":
        return str(LeaverWork.STOP)
    return str(policy_for(user)) if verb in CLOSING_VERBS else ""


def tokens_in_force(user: User, now: datetime) -> list[ApiToken]:
    """Return the API tokens of a user that are neither revoked nor expired, newest first."""
    rows = ApiToken.objects.filter(user=user, revoked_at=None, expires_at__gt=now)
    return list(rows.order_by("-created_at", "-pk"))
