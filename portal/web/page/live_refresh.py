"""Render the live part of a page: the part that refreshes itself.

The browser requests the part again on each event of the edge, and every ten seconds. If the content has not
changed, the response replaces only the line with the age of the data, so that nothing moves while the user
reads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

REFRESH_SECONDS = 10
CSRF_TOKEN_VALUE = re.compile(
    r'(name="csrfmiddlewaretoken" value=")[^"]*'
)  # Django masks the token differently in each response


def render_live_page(
    request: HttpRequest,
    template: str,
    part: str,
    context: Mapping[str, Any],
    *,
    topics: Sequence[str],
    now: datetime,
    stage: str = "",
) -> HttpResponse:
    """Return the page ``template`` with its live ``part``, or only the part for ``?part=live``.

    The page includes ``work/live.html`` at the place of the part. ``topics`` are the event topics of the edge
    that refresh the part. ``now`` is added to the context.

    ``stage`` names the state of the page's object, such as "running". If it differs from the stage that the
    browser shows, the response triggers the browser event ``next-stage``. The browser then also reloads the
    other parts that depend on the stage.
    """
    full_context = {**context, "now": now}
    body = render_to_string(part, full_context, request)
    full_context["live"] = _live_context(request, body, topics, stage)
    if request.GET.get("part") != "live":
        return render(request, template, full_context)
    if request.GET.get("version") == full_context["live"]["version"]:
        response = render(request, "work/fresh.html", full_context)
        response.headers["HX-Reswap"] = "none"
        return response
    response = render(request, "work/live_answer.html", full_context)
    if request.GET.get("stage", "") != stage:
        response.headers["HX-Trigger"] = "next-stage"
    return response


def events_url(topics: Sequence[str]) -> str:
    """Return the URL on which a page listens for events of ``topics``."""
    return f"{settings.GPUPOOL_EDGE_URL}/events?{urlencode({'topics': ','.join(topics)})}"


def _live_context(
    request: HttpRequest, body: SafeString, topics: Sequence[str], stage: str
) -> dict[str, Any]:
    content = CSRF_TOKEN_VALUE.sub(r"\1", body)
    version = hashlib.sha256(f"{stage} {content}".encode()).hexdigest()[:16]
    query = request.GET.copy()
    query["part"], query["version"] = "live", version
    if stage:
        query["stage"] = stage
    kinds = sorted({topic.partition(":")[0] for topic in topics})
    return {
        "body": mark_safe(body),
        "version": version,
        "url": f"{request.path}?{query.urlencode()}",
        "connect": events_url(topics),
        "trigger": ", ".join([*(f"sse:{kind} throttle:1s" for kind in kinds), f"every {REFRESH_SECONDS}s"]),
    }
