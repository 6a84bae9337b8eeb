"""Search for unusual spend, store it, and explain it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q

from portal import locks, policy
from portal.input_checks import InputChecks
from portal.models import Membership, User
from portal.models.audit import QUESTION_VERB
from portal.services import audit
from scheduler.core.rejection import OperationRejected
from telemetry.models import (
    SPEND_TO_EXPLAIN,
    Statement,
    StatementState,
    UnusualSpend,
    UnusualSpendExplanation,
    UnusualSpendSearch,
)
from telemetry.money.billing_months import billing_calendar
from telemetry.reads.unusual_spend import FoundSpend, search_unusual_spend

SEARCH_INTERVAL = timedelta(hours=1)
KEY = ("kind", "project_id", "user_id", "workload_name", "subject", "first_day")


def search_next_month(now: datetime) -> int | None:
    """Search the month whose last search is the oldest, and return the number of findings.

    Open months are searched again each hour, and a month once after its close. A month that was never
    searched is due at once. Return None if no month is due.
    """
    searched_at = "unusual_spend_search__searched_at"
    again = Q(**{f"{searched_at}__lte": now - SEARCH_INTERVAL}, state=StatementState.OPEN)
    after_close = Q(**{f"{searched_at}__lt": F("closed_at")}, state=StatementState.CLOSED)
    oldest = F(searched_at).asc(nulls_first=True)
    due = Statement.objects.filter(again | after_close | Q(unusual_spend_search=None))
    due = due.order_by(oldest, "-month")
    statement = due.first()
    return None if statement is None else refresh_unusual_spend(statement, now)


def refresh_unusual_spend(statement: Statement, now: datetime) -> int:
    """Search a month for unusual spend and store it. Return the number of findings.

    A row that is no longer found is deleted, unless a person has explained it.
    """
    found = search_unusual_spend(statement, billing_calendar().day_of(now))
    with transaction.atomic():
        UnusualSpendSearch.objects.update_or_create(statement=statement, defaults={"searched_at": now})
        _store(statement, found, now)
    return len(found)


def _store(statement: Statement, found: Sequence[FoundSpend], now: datetime) -> None:
    rows = {
        (each.kind, each.project, each.user, each.workload_name, each.subject, each.first_day): each
        for each in found
    }
    old = {tuple(getattr(row, name) for name in KEY): row for row in statement.unusual_spend.all()}
    gone = locks.lock_unusual_spend([row.pk for key, row in old.items() if key not in rows])
    UnusualSpend.objects.filter(pk__in=gone, explanations=None).delete()
    made = []
    for key, each in rows.items():
        values = {
            "last_day": each.last_day,
            "team_id": each.team,
            "currency": each.currency,
            "amount": each.amount,
            "usual": each.usual,
            "figures": each.figures,
        }
        if key in old:
            UnusualSpend.objects.filter(pk=old[key].pk).update(**values)
        else:
            columns = dict(zip(KEY, key, strict=True))
            made.append(UnusualSpend(statement=statement, found_at=now, **columns, **values))
    # A concurrent search may have stored the same rows.
    UnusualSpend.objects.bulk_create(made, ignore_conflicts=True)


def people_to_ask(spend: UnusualSpend) -> list[User]:
    """Return the active people who can explain unusual spend: its person, and the leads of its team."""
    leads = Membership.objects.filter(team=spend.team_id, role=Membership.Role.LEAD).values("user")
    people = User.objects.filter(Q(pk__in=leads) | Q(pk=spend.user_id), is_active=True)
    return list(people.order_by("username"))


def ask_about_spend(
    *, actor: User, spend: UnusualSpend, question: str, now: datetime, via: str = "web"
) -> list[User]:
    """Ask the people who can explain unusual spend, with a notice. Return these people.

    The audit record is the question; ``portal.notices.closes`` makes notices from it. Raises Invalid,
    NotAllowed. Raises OperationRejected if nobody can be asked.
    """
    policy.require(actor, "unusual_spend.explain_all")
    checks = InputChecks()
    question = checks.text("question", question, least=3, most=1000, lines=True)
    checks.done()
    people = [each for each in people_to_ask(spend) if each.pk != actor.pk]
    if not people:
        raise OperationRejected("spend_has_nobody_to_ask", {"subject": spend.subject}, field="question")
    audit.record(
        actor=actor,
        via=via,
        now=now,
        verb=QUESTION_VERB,
        target=spend,
        why=question,
        after={"asked": [each.get_username() for each in people]},
    )
    return people


def explain_unusual_spend(
    *, actor: User, spend: UnusualSpend, reason: str, now: datetime, via: str = "web"
) -> UnusualSpendExplanation:
    """Store a person's reason for unusual spend. A later reason takes the place of an earlier one.

    Raises Invalid, NotAllowed. Raises OperationRejected if the month is closed, if the spend needs no
    explanation, or if a search has deleted it meanwhile.
    """
    policy.require(actor, "unusual_spend.explain", spend)
    checks = InputChecks()
    reason = checks.text("reason", reason, least=3, most=1000, lines=True)
    checks.done()
    numbers = {"subject": spend.subject, "month": f"{spend.statement.month:%Y-%m}"}
    if spend.kind not in SPEND_TO_EXPLAIN:
        raise OperationRejected("spend_explains_itself", numbers, field="reason")
    with transaction.atomic():
        if locks.lock_statement_state(spend.statement_id) == StatementState.CLOSED:
            raise OperationRejected("month_is_closed", numbers, field="reason")
        if not locks.lock_unusual_spend([spend.pk]):
            raise OperationRejected("spend_is_not_unusual", numbers, field="reason")
        row = UnusualSpendExplanation.objects.create(spend=spend, reason=reason, author=actor, at=now)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="explain_unusual_spend",
            target=spend,
            why=reason,
            after=audit.audited_fields(spend, "kind", "subject", "first_day", "last_day", "amount"),
        )
    return row
