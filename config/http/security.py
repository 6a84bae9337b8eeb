"""Add a content security policy to every response, and reject addresses with NUL characters."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse

GetResponse = Callable[[HttpRequest], HttpResponseBase]


def csp_header(nonce: str) -> str:
    """Return the Content-Security-Policy header of a page.

    It allows only resources of the portal itself, and live events from the edge.
    """
    edge = urlsplit(settings.GPUPOOL_EDGE_URL)
    edge_origin = f"{edge.scheme}://{edge.netloc}"
    # The form that opens a notebook is redirected to the notebook's own origin.
    workspaces = f"{edge.scheme}://*.{settings.GPUPOOL_NOTEBOOK_DOMAIN}"
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src 'self' 'nonce-{nonce}'",
            # Charts and the calendar use style attributes, which cannot have a nonce.
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            f"connect-src 'self' {edge_origin}",
            f"form-action 'self' {edge_origin} {workspaces}",
            "object-src 'none'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


def add_content_security_policy(get_response: GetResponse) -> GetResponse:
    """Give each request a new nonce, and add the policy with this nonce to the response.

    The response also gets ``Cache-Control: no-store``, unless it says how it may be kept. Static files do not
    pass through this middleware.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        nonce = secrets.token_urlsafe(16)
        request.csp_nonce = nonce  # type: ignore[attr-defined]
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", csp_header(nonce))
        response.headers.setdefault("Permissions-Policy", "camera=(), microphone=(), geolocation=()")
        # Answers depend on the person who asks. No proxy and no shared browser may keep them.
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    return respond


def csp_nonce(request: HttpRequest) -> dict[str, str]:
    """Return the template context with the nonce, which inline scripts of the page need."""
    return {"csp_nonce": getattr(request, "csp_nonce", "")}


def reject_nul_characters(get_response: GetResponse) -> GetResponse:
    """Reject requests whose address has a NUL character.

    PostgreSQL cannot store NUL, so otherwise every view would have to check its parameters.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        query = request.META.get("QUERY_STRING", "")
        if "\0" in request.path or "%00" in query or "\0" in query:
            message = "The address contains the character NUL (%00); allowed: any text without it."
            if request.path.startswith("/api/"):
                return JsonResponse(
                    {"errors": [{"field": "", "value": None, "message": message}]}, status=400
                )
            return HttpResponse(message, status=400, content_type="text/plain; charset=utf-8")
        return get_response(request)

    return respond
