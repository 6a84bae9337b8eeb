"""Read the organisation and its currency once per request."""

from __future__ import annotations

from django.http import HttpRequest

from portal.models import Organisation


def current_organisation(request: HttpRequest) -> Organisation | None:
    """Return the organisation; None before the setup wizard has created it. It is read once per request."""
    if not hasattr(request, "_organisation"):
        request._organisation = Organisation.objects.first()  # type: ignore[attr-defined]
    return request._organisation  # type: ignore[attr-defined, no-any-return]


def current_currency(request: HttpRequest) -> str:
    """Return the organisation's currency code, such as EUR."""
    organisation = current_organisation(request) or Organisation()
    return organisation.currency
