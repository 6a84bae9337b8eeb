"""Read the changes that people made to the money of a month, from the audit log."""

from __future__ import annotations

from datetime import date

from django.db.models import Q

from portal.models.audit import MONEY_VERBS
from telemetry.models import Adjustment, Statement, UnusualSpend
from telemetry.money.billing_months import month_bounds


def of_month(month: date) -> Q:
    """Return the condition for the audit records about the money of a month.

    They are the changes of money that were made in the month, and the changes of its statement, its
    adjustments and the reasons for its unusual spend, whenever they were made.
    """
    start, end = month_bounds(month)
    targets = [f"statement:{pk}" for pk in Statement.objects.filter(month=month).values_list("pk", flat=True)]
    for kind in (Adjustment, UnusualSpend):
        rows = kind._default_manager.filter(statement__month=month).values_list("pk", flat=True)
        targets += [f"{kind._meta.model_name}:{pk}" for pk in rows]
    return Q(verb__in=MONEY_VERBS) & (Q(at__gte=start, at__lt=end) | Q(target__in=targets))
