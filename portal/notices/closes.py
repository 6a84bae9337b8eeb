"""Find months to close, new statements, and questions of finance about unusual spend, for notices."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from portal import policy
from portal.models import AuditEvent, Membership, User
from portal.models.audit import QUESTION_VERB
from portal.notices.pending import PendingNotice
from portal.notices.recipients import finance_ids
from portal.reads.money.closing.waiting_months import can_be_settled, waiting_months
from telemetry.models import Statement, UnusualSpend
from telemetry.money.billing_months import month_bounds

REMINDER_INTERVAL = timedelta(weeks=1)


def months_to_close(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice to finance about each month that waits to be closed: once, and again each week."""
    months = [month for month in waiting_months(now) if can_be_settled(month, now)]
    users = finance_ids() if months else ()
    for month in months:
        week = (now - month_bounds(month)[1]) // REMINDER_INTERVAL
        numbers = {"month": month.isoformat(), "weeks": week}
        yield PendingNotice("month_waits", f"month waits:{month:%Y-%m}:{week}", users, numbers)


def questions_about_spend(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each question of finance to the people whom it asks."""
    asked = AuditEvent.objects.filter(verb=QUESTION_VERB, at__gt=since, at__lte=now).order_by("pk")
    for event in asked:
        spend = UnusualSpend.objects.filter(pk=event.target.partition(":")[2]).first()
        if spend is None:  # a search has deleted it: nothing is unusual any more
            continue
        names = (event.after or {}).get("asked", [])
        users = tuple(User.objects.filter(username__in=names).order_by("pk").values_list("pk", flat=True))
        numbers = {"author": event.actor_name, "question": event.why, "spend": spend.pk}
        yield PendingNotice("spend_question", f"spend question:{event.pk}", users, numbers)


def statements_made(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about the statements of a month that was closed, to the leads who see them."""
    for statement in Statement.objects.filter(closed_at__gt=since, closed_at__lte=now).order_by("month"):
        leads = Membership.objects.filter(role=Membership.Role.LEAD, user__is_active=True)
        for lead in User.objects.filter(pk__in=leads.values("user")).order_by("pk"):
            found = policy.visible_documents(lead).filter(statement=statement).order_by("number")
            numbers = list(found.values_list("number", flat=True))
            if numbers:
                facts = {"month": statement.month.isoformat(), "number": numbers[0], "count": len(numbers)}
                source = f"statements made:{statement.month:%Y-%m}"
                closer = statement.closed_by_id
                yield PendingNotice("statements_made", source, (lead.pk,), facts, actor=closer)
