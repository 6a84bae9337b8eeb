"""Read the unusual spend of a month that a viewer may see, with its evidence and its explanations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.urls import reverse

from portal import policy
from portal.models import AuditEvent, Membership, User
from portal.models.audit import QUESTION_VERB
from portal.wording.pages.money import unusual_texts
from telemetry.core.spending.unusual_spend import HIGH_DAY_FACTOR, NOT_TAKEN_SHARE
from telemetry.models import (
    SPEND_TO_EXPLAIN,
    Statement,
    UnusualSpend,
    UnusualSpendExplanation,
    UnusualSpendKind,
    UnusualSpendSearch,
)


@dataclass(frozen=True)
class UnusualRow:
    """Unusual spend of a month with its newest explanation. Its texts are built when a page shows them."""

    spend: UnusualSpend
    month: date
    explanation: UnusualSpendExplanation | None
    may_explain: bool

    @property
    def title(self) -> str:
        """Return the headline."""
        days = (self.spend.first_day, self.spend.last_day)
        return unusual_texts.title(self.spend.kind, self.spend.subject, self._numbers, days)

    @property
    def detail(self) -> str:
        """Return the evidence as a sentence; "" for kinds that need no reason."""
        return unusual_texts.detail(self.spend.kind, self._numbers)

    @property
    def url(self) -> str:
        """Return the address of the charge lines behind it, or of the rate card."""
        return _evidence_url(self.spend, self.month)

    @property
    def curve(self) -> list[float]:
        """Return the charge of each day, up to the last day of the finding."""
        return [float(value) for value in self.spend.figures.get("curve", ())]

    @property
    def curve_label(self) -> str:
        """Return the text of the curve for screen readers."""
        return unusual_texts.CURVE.format(day=self.spend.last_day)

    @property
    def needs_explanation(self) -> bool:
        """Return True if a person must explain it. Stays True when it is explained."""
        return self.spend.kind in SPEND_TO_EXPLAIN

    @property
    def top(self) -> float:
        """Return the highest charge of the curve."""
        return max(self.curve, default=0.0) or 1.0

    @property
    def _numbers(self) -> dict[str, Any]:
        spend = self.spend
        columns = {"amount": spend.amount, "usual": spend.usual, "currency": spend.currency}
        return {**spend.figures, **columns}


@dataclass(frozen=True)
class UnusualOverview:
    """The unusual spend of a month that a viewer may see. ``searched_at`` is None before the first search.

    ``may_ask`` is True if the viewer may ask the people who know the reason.
    """

    rows: tuple[UnusualRow, ...]
    searched_at: datetime | None
    closed: bool = False
    may_ask: bool = False

    @property
    def open(self) -> list[UnusualRow]:
        """Return the rows that wait for an explanation."""
        return [row for row in self.rows if row.needs_explanation and row.explanation is None]

    @property
    def explained(self) -> list[UnusualRow]:
        """Return the rows that a person has explained."""
        return [row for row in self.rows if row.explanation is not None]

    @property
    def self_explained(self) -> list[UnusualRow]:
        """Return the rows that need no explanation by a person."""
        return [row for row in self.rows if not row.needs_explanation and row.explanation is None]

    @property
    def counts(self) -> tuple[int, int]:
        """Return the number of rows without an explanation, and the number that people must explain."""
        return len(self.open), sum(1 for row in self.rows if row.needs_explanation)

    @property
    def rules(self) -> str:
        """Return the rules with their thresholds as a sentence."""
        return unusual_texts.RULES.format(factor=HIGH_DAY_FACTOR, percent=NOT_TAKEN_SHARE * 100)

    @property
    def finding(self) -> tuple[str, str]:
        """Return the sentence about the panel, in two parts."""
        counts = (len(self.open), len(self.explained), len(self.self_explained))
        return unusual_texts.finding(*counts, closed=self.closed)


def unusual_overview(
    viewer: User, month: date, *, closed: bool = False, statement: Statement | None = None
) -> UnusualOverview:
    """Return the unusual spend of a month that a viewer may see. Runs at most four queries.

    In a closed month, nobody may explain it any more. ``statement`` is that of the month with its last
    search, if the caller has it.
    """
    found = policy.visible_unusual_spend(viewer).filter(statement__month=month)
    if statement is not None:
        search: UnusualSpendSearch | None = getattr(statement, "unusual_spend_search", None)
    else:
        search = UnusualSpendSearch.objects.filter(statement__month=month).first()
    return UnusualOverview(
        tuple(unusual_rows(viewer, found, month, closed)),
        search.searched_at if search else None,
        closed,
        policy.may(viewer, "unusual_spend.explain_all"),
    )


def unusual_rows(viewer: User, found: QuerySet[UnusualSpend], month: date, closed: bool) -> list[UnusualRow]:
    """Return the rows of unusual spend of a month, in the order of the rules and of the amounts."""
    order = {kind.value: index for index, kind in enumerate(UnusualSpendKind)}
    # A statement has large columns, so it is not selected with each row.
    spends = sorted(found.select_related("team"), key=lambda each: (order[each.kind], -each.amount, each.pk))
    latest = UnusualSpendExplanation.objects.filter(spend__in=[each.pk for each in spends])
    latest = latest.select_related("author").order_by("spend", "-at", "-pk").distinct("spend")
    explanations = {each.spend_id: each for each in latest} if spends else {}
    teams = _explained_teams(viewer)
    return [
        UnusualRow(
            each,
            month,
            explanations.get(each.pk),
            not closed and each.kind in SPEND_TO_EXPLAIN and (teams is None or each.team_id in teams),
        )
        for each in spends
    ]


def questions_about(viewer: User, spend: UnusualSpend) -> QuerySet[AuditEvent]:
    """Return the visible questions of finance about unusual spend, newest first."""
    target = f"{spend._meta.model_name}:{spend.pk}"
    return policy.visible_audit(viewer).filter(verb=QUESTION_VERB, target=target).order_by("-at", "-pk")


def _explained_teams(viewer: User) -> set[int] | None:
    """Return the teams whose spend the viewer may explain; None means all teams."""
    if policy.may(viewer, "unusual_spend.explain_all"):
        return None
    if viewer.auditor:
        return set()
    return set(policy.my_team_ids(viewer, Membership.Role.LEAD).values_list("team_id", flat=True))


def _evidence_url(spend: UnusualSpend, month: date) -> str:
    """Return the address of the charge lines behind unusual spend, or of the rate card."""
    if spend.kind == UnusualSpendKind.NEW_PRICE:
        return reverse("rate-card")
    query: dict[str, Any] = {"month": f"{month:%Y-%m}", "project": spend.project_id}
    if spend.kind == UnusualSpendKind.HIGH_DAY:
        query["bucket"] = "used"
        if spend.user_id is not None:
            query["user"] = spend.user_id
        if spend.first_day == spend.last_day:
            query["day"] = spend.first_day.isoformat()
    if spend.kind == UnusualSpendKind.NOT_TAKEN:
        query["bucket"] = "reserved_unused"
    return f"{reverse('charge-lines')}?{urlencode(query)}"
