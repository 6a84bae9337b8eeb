"""Link each check of a close to the hosts, lines and settings behind its result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from portal.reads.money.chargeback import statement_of
from portal.reads.money.unmapped import UnmappedPayer, unmapped_in_month
from portal.wording.pages.money import close_texts
from telemetry.models import CloseProposal, MonthRehearsal, Statement, StatementState
from telemetry.money.billing_months import month_bounds
from telemetry.money.close_checks import (
    LINES_MAPPED,
    SLOW_CONDITIONS,
    audit_check,
    close_checks,
    quick_checks,
)
from telemetry.money.closing.cost_centre_statements import cost_centre_totals
from telemetry.money.closing.proposals import PROPOSAL_LIFETIME, current_proposal
from telemetry.money.closing.rehearsals import stored_rehearsal

LINE = re.compile(r"^line (\d+):")


@dataclass(frozen=True)
class EvidenceItem:
    """A sentence that explains the result of a check. ``url`` is a page with details; it may be empty."""

    text: str
    url: str = ""


@dataclass(frozen=True)
class CloseRehearsal:
    """The results of the checks of a close, and the charge of each cost centre.

    ``over`` is True if the month has ended at ``ends_at``. ``audited`` is True if the checks include the
    audit. ``proposal`` is the present proposal. Another person may carry it out until ``expires_at``. The
    results of the slow checks come from the rehearsal ``stored``. ``stored`` is None if all checks ran now,
    or if no rehearsal is stored. The result ``ok`` of a slow check that never ran is None. ``unmapped`` are
    the payers that keep the month open, with the people who must act.
    """

    month: date
    ends_at: datetime
    over: bool
    audited: bool
    checks: list[dict[str, Any]]
    totals: list[tuple[str, str, Any]]
    statement: Statement | None
    proposal: CloseProposal | None
    stored: MonthRehearsal | None = None
    unmapped: tuple[UnmappedPayer, ...] = ()

    @property
    def passed(self) -> int:
        """Return the number of checks that pass."""
        return sum(1 for check in self.checks if check["ok"])

    @property
    def slow_checks(self) -> int:
        """Return the number of checks that read every charge line."""
        return len(SLOW_CONDITIONS)

    @property
    def expires_at(self) -> datetime | None:
        """Return the time at which the proposal expires."""
        return self.proposal.proposed_at + PROPOSAL_LIFETIME if self.proposal else None

    @property
    def closed(self) -> bool:
        """Return True if the month is closed. ``checks`` then has the results stored at the close."""
        return self.statement is not None and self.statement.state == StatementState.CLOSED


def rehearse_close(month: date, now: datetime, *, audit: bool = False) -> CloseRehearsal:
    """Run the checks of a month now, also if it is not over. A rehearsal changes nothing.

    ``audit`` also compares every line with the facts, which may take a minute. If the month is closed, return
    the results that were stored at the close.
    """
    statement = statement_of(month)
    if statement is not None and statement.state == StatementState.CLOSED:
        return _closed_month(statement, now)
    checks = close_checks(month)
    if audit:
        checks.append(audit_check(month, now))
    return _rehearsal(month, statement, checks, now, audited=audit)


def close_state(month: date, now: datetime) -> CloseRehearsal:
    """Run the quick checks of a month now, and add the slow ones of its last stored rehearsal.

    A closed month has the checks of its close.
    """
    statement = statement_of(month)
    if statement is not None and statement.state == StatementState.CLOSED:
        return _closed_month(statement, now)
    stored = stored_rehearsal(month)
    checks = merged_checks(quick_checks(month), stored)
    return _rehearsal(month, statement, checks, now, audited=stored is not None, stored=stored)


def merged_checks(quick: list[dict[str, Any]], stored: MonthRehearsal | None) -> list[dict[str, Any]]:
    """Return the quick checks, and the slow ones from a stored rehearsal. ``ok`` is None without a result."""
    last = {check["check"]: check for check in stored.checks} if stored else {}
    unknown: dict[str, Any] = {"ok": None, "figures": {}}
    return [*quick, *({"check": name, **last.get(name, unknown)} for name in SLOW_CONDITIONS)]


def _closed_month(statement: Statement, now: datetime) -> CloseRehearsal:
    return _rehearsal(statement.month, statement, list(statement.checks), now, audited=True, closed=True)


def _rehearsal(
    month: date,
    statement: Statement | None,
    checks: list[dict[str, Any]],
    now: datetime,
    *,
    audited: bool,
    closed: bool = False,
    stored: MonthRehearsal | None = None,
) -> CloseRehearsal:
    end = month_bounds(month)[1]
    return CloseRehearsal(
        month=month,
        ends_at=end,
        over=now >= end,
        audited=audited,
        checks=checks,
        totals=cost_centre_totals(statement) if statement else [],
        statement=statement,
        proposal=None if closed else current_proposal(month, now),
        stored=stored,
        unmapped=() if closed or _passes(checks, LINES_MAPPED) else tuple(unmapped_in_month(month)),
    )


def _passes(checks: list[dict[str, Any]], condition: str) -> bool:
    return all(check["ok"] for check in checks if check["check"] == condition)


def check_evidence(
    check: Mapping[str, Any], month: date, unmapped: Sequence[UnmappedPayer] = ()
) -> list[EvidenceItem]:
    """Return the sentences that explain the figures of a check, with links to hosts, lines and settings.

    Only the figures in ``_ITEMS`` have such sentences. ``unmapped`` are the payers without a cost centre,
    with the people who must act.
    """
    if unmapped and check["check"] == LINES_MAPPED:
        return [
            EvidenceItem(
                close_texts.UNMAPPED.format(name=payer.name, who_acts=payer.who_acts), reverse("cost-centres")
            )
            for payer in unmapped
        ]
    return [item for name, make in _ITEMS.items() if name in check["figures"] for item in make(check, month)]


def focus_evidence(stored: MonthRehearsal | None) -> list[dict[str, Any]]:
    """Return the result of the rules of FOCUS like a check with its evidence; [] without a result."""
    if stored is None or stored.focus is None:
        return []
    broken = stored.focus["broken"]
    texts = broken or [close_texts.FOCUS_ROWS.format(rows=stored.focus["rows"])]
    return [
        {"check": close_texts.FOCUS, "ok": not broken, "evidence": [EvidenceItem(text) for text in texts]}
    ]


def _host_items(check: Mapping[str, Any], month: date) -> Iterator[EvidenceItem]:
    for name in check["figures"]["hosts"]:
        yield EvidenceItem(close_texts.HOST.format(host=name), reverse("host", args=[name]))


def _sample_items(state: str) -> Callable[[Mapping[str, Any], date], Iterator[EvidenceItem]]:
    def items(check: Mapping[str, Any], month: date) -> Iterator[EvidenceItem]:
        for entry in check["figures"][state]:
            text = close_texts.SAMPLES[state].format(**entry)
            yield EvidenceItem(text, reverse("host", args=[entry["host"]]))

    return items


def _model_items(check: Mapping[str, Any], month: date) -> Iterator[EvidenceItem]:
    for model in check["figures"]["models"]:
        yield EvidenceItem(close_texts.UNPRICED.format(model=model), reverse("rate-card"))


def _payer_items(kind: str) -> Callable[[Mapping[str, Any], date], Iterator[EvidenceItem]]:
    def items(check: Mapping[str, Any], month: date) -> Iterator[EvidenceItem]:
        for name in check["figures"][kind]:
            yield EvidenceItem(close_texts.PAYERS[kind].format(name=name), reverse("cost-centres"))

    return items


def _gpu_items(check: Mapping[str, Any], month: date) -> Iterator[EvidenceItem]:
    for entry in check["figures"]["gpus"]:
        if isinstance(entry, dict):  # version 0.1 stored other figures
            host = entry.get("host", "")
            text = close_texts.WRONG_SECONDS.format(
                gpu=entry["gpu"],
                host=host,
                slot_seconds=entry["slot_seconds"],
                expected=entry["expected"],
            )
            yield EvidenceItem(text, reverse("host", args=[host]) if host else "")


def _pool_items(check: Mapping[str, Any], month: date) -> Iterator[EvidenceItem]:
    for entry in check["figures"]["pools"]:
        if entry["left"] != entry["cost"]:
            url = f"{reverse('chargeback')}?{urlencode({'month': f'{month:%Y-%m}', 'by': 'pool'})}"
            text = close_texts.UNBALANCED.format(pool=entry["pool"], left=entry["left"], cost=entry["cost"])
            yield EvidenceItem(text, url)


def _difference_items(name: str) -> Callable[[Mapping[str, Any], date], Iterator[EvidenceItem]]:
    def items(check: Mapping[str, Any], month: date) -> Iterator[EvidenceItem]:
        for text in check["figures"][name]:
            line = LINE.match(text) if name == "differences" else None
            yield EvidenceItem(text, reverse("charge-line", args=[int(line[1])]) if line else "")

    return items


def _adjustment_items(check: Mapping[str, Any], month: date) -> Iterator[EvidenceItem]:
    for entry in check["figures"]["undecided"]:
        text = close_texts.UNDECIDED.format(
            number=entry["number"],
            cost_centre=entry["cost_centre"],
            amount=entry["amount"],
            author=entry["author"],
        )
        yield EvidenceItem(text, reverse("adjustment", args=[entry["number"]]))


# By figure of a check: the function that makes the sentences about it.
_ITEMS: dict[str, Callable[[Mapping[str, Any], date], Iterator[EvidenceItem]]] = {
    "hosts": _host_items,
    "waiting": _sample_items("waiting"),
    "lost": _sample_items("lost"),
    "models": _model_items,
    "gpus": _gpu_items,
    "pools": _pool_items,
    "undecided": _adjustment_items,
    "differences": _difference_items("differences"),
    "cents": _difference_items("cents"),
    **{kind: _payer_items(kind) for kind in close_texts.PAYERS},
}
