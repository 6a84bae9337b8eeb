"""Read the progress of the close of a month, for the chargeback page.

The panel runs no check that reads charge lines: it shows quick figures of now, and the results of the last
stored rehearsal. The close itself runs all checks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal

from django.db.models import Count, Max, Min, Sum
from django.urls import reverse

from portal import policy
from portal.models import User
from portal.reads.money.unusual_spend import UnusualOverview, unusual_overview
from portal.wording.pages.money import close_panel_texts, close_texts
from telemetry.models import CloseProposal, CostCentreStatement, MonthRehearsal, Statement
from telemetry.money.billing_months import month_bounds, month_of
from telemetry.money.close_checks import CONDITIONS_AFTER_END, SAMPLES_ARRIVED
from telemetry.money.closing.proposals import current_proposal
from telemetry.money.closing.rehearsals import ended_rehearsal
from telemetry.money.closing.statement_months import StatementMonths
from telemetry.money.reconciliation import LineSums
from telemetry.reads.overview.line_counts import LineCounts, line_counts

CheckState = Literal["passes", "fails", "open", "later", "unknown"]


@dataclass(frozen=True)
class PanelCheck:
    """One line of the panel.

    The state ``later`` means that the condition can hold only after the end of the month. ``open`` means that
    it does not hold but blocks no close. ``unknown`` means that it was never checked. ``url`` is the address
    of the evidence. ``failing`` has the names of the failing checks. A line that does not block the close is
    not counted.
    """

    text: str
    state: CheckState
    figure: str = ""
    url: str = ""
    failing: tuple[str, ...] = ()
    blocks: bool = True


@dataclass(frozen=True)
class LastClose:
    """The statements of cost centres of the last closed month, in one currency.

    ``first_number`` is the number of the first of them.
    """

    month: date
    currency: str
    statements: int
    total: Decimal
    first_number: str


@dataclass(frozen=True)
class ClosePanel:
    """The progress of the close of an open month. ``waiting`` has all months to close, oldest first."""

    month: date
    ends_at: datetime
    over: bool
    checks: tuple[PanelCheck, ...]
    steps: list[dict[str, Any]]
    rehearsal: MonthRehearsal | None
    proposal: CloseProposal | None
    two_people: bool
    may_close: bool
    waiting: tuple[date, ...]
    last_close: LastClose | None

    @property
    def passed(self) -> int:
        """Return the number of blocking lines that pass."""
        return _passed(self.checks)

    @property
    def finding(self) -> str:
        """Return the sentence about the checks."""
        return close_panel_texts.finding(
            passed=self.passed,
            checks=_blocking(self.checks),
            over=self.over,
            rehearsed=self.rehearsal is not None,
        )


def _passed(checks: Sequence[PanelCheck]) -> int:
    return sum(1 for check in checks if check.blocks and check.state == "passes")


def _blocking(checks: Sequence[PanelCheck]) -> int:
    return sum(1 for check in checks if check.blocks)


@dataclass(frozen=True)
class ReadMonth:
    """The parts of a month that its page reads once.

    ``statement`` is the statement with its last rehearsal and its last search for unusual spend; None if
    there is none. ``lines`` are the sums of its lines; None for viewers who do not see all charges.
    ``months`` are the statements of all months, and ``two_people`` says whether two people close a month.
    """

    statement: Statement | None
    lines: Sequence[LineSums] | None
    months: StatementMonths
    two_people: bool

    @cached_property
    def counts(self) -> LineCounts | None:
        """Return the numbers of the month's lines; None for viewers who do not see all charges."""
        return None if self.lines is None else line_counts(self.lines)


def close_and_unusual(
    viewer: User,
    month: date,
    now: datetime,
    read: ReadMonth,
    *,
    closed: bool,
    equation: Mapping[str, Any] | None,
    filtered: bool,
) -> dict[str, Any]:
    """Return the panels ``close`` and ``unusual`` of the chargeback page; None for a panel without content.

    If ``filtered`` is True, the page shows only a part of the charges, and both panels are None.
    """
    unusual = None if filtered else unusual_overview(viewer, month, closed=closed, statement=read.statement)
    panel = close_panel(viewer, month, now, read, closed=closed, equation=equation, unusual=unusual)
    return {"unusual": unusual, "close": panel}


def close_panel(
    viewer: User,
    month: date,
    now: datetime,
    read: ReadMonth,
    *,
    closed: bool,
    equation: Mapping[str, Any] | None,
    unusual: UnusualOverview | None = None,
) -> ClosePanel | None:
    """Return the panel of an open month; None if the page has no equation of all charges. Runs two queries.

    ``equation`` is the result of ``conservation_equation`` that the page shows. ``unusual`` is the unusual
    spend that the page shows.
    """
    counts = read.counts
    if closed or equation is None or counts is None or not policy.sees_all_charges(viewer):
        return None
    ends_at = month_bounds(month)[1]
    rehearsal, proposal = ended_rehearsal(read.statement), current_proposal(month, now)
    over = now >= ends_at
    checks = (
        _equation_check(equation["difference"]),
        _cost_centre_check(counts),
        _samples_check(counts, rehearsal),
        _rehearsal_check(rehearsal, month, over),
        _focus_check(rehearsal, month),
        _unusual_check(unusual),
        PanelCheck(close_panel_texts.OVER, "passes" if over else "later"),
    )
    return ClosePanel(
        month=month,
        ends_at=ends_at,
        over=over,
        checks=checks,
        steps=close_texts.close_steps(
            passed=_passed(checks),
            checks=_blocking(checks),
            statements=counts.charged_cost_centres,
            proposer=proposal.proposed_by.get_username() if proposal else "",
            closer="",
            over=over,
            two_people=read.two_people,
        ),
        rehearsal=rehearsal,
        proposal=proposal,
        two_people=read.two_people,
        may_close=policy.may(viewer, "statement.close") and over,
        waiting=tuple(read.months.open_before(month_of(now))),
        last_close=_last_close(),
    )


def _equation_check(difference: Decimal) -> PanelCheck:
    state: CheckState = "fails" if difference else "passes"
    figure = close_panel_texts.DIFFERENCE.format(difference=difference)
    return PanelCheck(close_panel_texts.EQUATION, state, figure, "#sum")


def _cost_centre_check(counts: LineCounts) -> PanelCheck:
    state: CheckState = "fails" if counts.unmapped else "passes"
    figure = close_panel_texts.line_figure(counts.charged_lines, counts.unmapped)
    return PanelCheck(close_panel_texts.MAPPED, state, figure, reverse("cost-centres"))


def _samples_check(counts: LineCounts, rehearsal: MonthRehearsal | None) -> PanelCheck:
    """Return the line of measured time. Its state says whether hosts owed samples at the last rehearsal."""
    stored = rehearsal.checks if rehearsal else []
    arrived = [check["ok"] for check in stored if check["check"] == SAMPLES_ARRIVED]
    state: CheckState = "unknown" if not arrived else "passes" if all(arrived) else "fails"
    share = min(1.0, counts.covered / counts.held) if counts.held > 0 else None
    hours = max(0.0, counts.held - counts.covered) / (840 * 3600)
    text, figure = close_panel_texts.coverage(share, hours)
    return PanelCheck(text, state, figure)


def _rehearsal_check(rehearsal: MonthRehearsal | None, month: date, over: bool) -> PanelCheck:
    """Return the line of the last rehearsal. A condition that needs the end of the month counts as later."""
    url = reverse("month-close", args=[f"{month:%Y-%m}"])
    if rehearsal is None:
        return PanelCheck(close_panel_texts.NOT_REHEARSED, "unknown", "", url)
    failing = [check["check"] for check in rehearsal.checks if not check["ok"]]
    if not over:
        failing = [name for name in failing if name not in CONDITIONS_AFTER_END]
    state: CheckState = "fails" if failing else "passes"
    passed, checks = sum(1 for check in rehearsal.checks if check["ok"]), len(rehearsal.checks)
    figure = close_panel_texts.PASSED.format(passed=passed, checks=checks)
    return PanelCheck(close_panel_texts.REHEARSED, state, figure, url, tuple(failing))


def _focus_check(rehearsal: MonthRehearsal | None, month: date) -> PanelCheck:
    """Return the line of the rules of FOCUS. A broken rule does not keep the month open."""
    found = rehearsal.focus if rehearsal else None
    if found is None:
        return PanelCheck(close_texts.FOCUS, "unknown", blocks=False)
    state: CheckState = "fails" if found["broken"] else "passes"
    figure = close_panel_texts.focus_figure(found["rows"], len(found["broken"]))
    url = reverse("month-close", args=[f"{month:%Y-%m}"])
    return PanelCheck(close_texts.FOCUS, state, figure, url, tuple(found["broken"]), blocks=False)


def _unusual_check(unusual: UnusualOverview | None) -> PanelCheck:
    """Return the line of unusual spend. It does not keep the month open."""
    if unusual is not None and unusual.searched_at is None and not unusual.rows:
        return PanelCheck(close_panel_texts.UNUSUAL, "unknown", close_panel_texts.NOT_SEARCHED, blocks=False)
    unexplained, of = unusual.counts if unusual else (0, 0)
    figure = close_panel_texts.unusual_figure(unexplained, of)
    state: CheckState = "open" if unexplained else "passes"
    return PanelCheck(close_panel_texts.UNUSUAL, state, figure, "#unusual", blocks=False)


def _last_close() -> LastClose | None:
    """Return the statements of the last closed month with statements; None without such a month."""
    rows = CostCentreStatement.objects.values("statement__month", "currency").annotate(
        statements=Count("pk"), total=Sum("total"), first_number=Min("number"), latest=Max("statement__month")
    )
    row = rows.order_by("-latest", "currency").first()
    if row is None:
        return None
    return LastClose(
        row["statement__month"], row["currency"], row["statements"], row["total"], row["first_number"]
    )
