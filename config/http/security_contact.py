"""Publish where to report a vulnerability of this installation (RFC 9116)."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

VALIDITY = timedelta(days=30)  # a reader asks again after this time, because the setting may have changed


@require_safe
def security_txt(request: HttpRequest) -> HttpResponse:
    """Return the contact of the setting GPUPOOL_SECURITY_CONTACT. Answer 404 if it is not set."""
    if not settings.GPUPOOL_SECURITY_CONTACT:
        raise Http404
    expires = (timezone.now() + VALIDITY).isoformat(timespec="seconds")
    lines = (
        f"Contact: {settings.GPUPOOL_SECURITY_CONTACT}",
        f"Expires: {expires}",
        f"Canonical: {settings.GPUPOOL_PORTAL_URL}{request.path}",
    )
    return HttpResponse("".join(f"{line}\n" for line in lines), content_type="text/plain; charset=utf-8")
