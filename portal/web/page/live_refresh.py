"""Parts of a page that refresh themselves: told by the edge that something changed, or else every ten seconds.

The same template serves the whole page and its refresh. A refresh whose words are the same as what the browser has got replaces
only the line that says how fresh it is: nothing moves under the reader's hand.
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
CSRF_TOKEN_VALUE = re.compile(r'(name="csrfmiddlewaretoken" value=")[^"]*')  # masked anew in every answer


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
    """The page ``template``, which shows ``{% include "work/live.html" %}`` where the ``part`` belongs, or (``?part=live``)
    only that part. ``topics`` are the edge's; the context gets ``now`` too. When the ``stage`` is another than the browser's, it
    is told ``next-stage``, and whatever of the page waits for that is asked for anew."""
    given = {**context, "now": now}
    body = render_to_string(part, given, request)
    given["live"] = _live_context(request, body, topics, stage)
    if request.GET.get("part") != "live":
        return render(request, template, given)
    if request.GET.get("version") == given["live"]["version"]:
        answer = render(request, "work/fresh.html", given)
        answer.headers["HX-Reswap"] = "none"
        return answer
    answer = render(request, "work/live_answer.html", given)
    if request.GET.get("stage", "") != stage:
        answer.headers["HX-Trigger"] = "next-stage"
    return answer


def events_url(topics: Sequence[str]) -> str:
    """Where a page listens for ``topics``."""
    return f"{settings.GPUPOOL_EDGE_URL}/events?{urlencode({'topics': ','.join(topics)})}"


def _live_context(
    request: HttpRequest, body: SafeString, topics: Sequence[str], stage: str
) -> dict[str, Any]:
    words = CSRF_TOKEN_VALUE.sub(r"\1", body)
    version = hashlib.sha256(f"{stage} {words}".encode()).hexdigest()[:16]
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
