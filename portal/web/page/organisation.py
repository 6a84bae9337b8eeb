"""Read the organisation and its present currency once per request."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils import timezone

from portal.models import Organisation
from telemetry.core.currencies import DEFAULT_CURRENCY
from telemetry.money.pricing.billing_currencies import currency_at


def current_organisation(request: HttpRequest) -> Organisation | None:
    """Return the organisation; None before the setup wizard has created it. It is read once per request.

    Its attribute ``currency`` is the currency of the present month.
    """
    if not hasattr(request, "_organisation"):
        rows = Organisation.objects.annotate(currency=currency_at(timezone.now()))
        request._organisation = rows.first()  # type: ignore[attr-defined]
    return request._organisation  # type: ignore[attr-defined, no-any-return]


def current_currency(request: HttpRequest) -> str:
    """Return the code of the currency of the present month, such as EUR."""
    organisation = current_organisation(request)
    return DEFAULT_CURRENCY if organisation is None else organisation.currency  # type: ignore[attr-defined, no-any-return]
