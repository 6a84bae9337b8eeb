"""The few pages that the edge itself shows, in plain words. Every value is escaped; a program gets JSON."""

from __future__ import annotations

import html

from aiohttp import web
from django.conf import settings

from portal.edge.access import No

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

PORTAL_PAGE = "/notebooks/{}/"  # written here, so that the edge need not load every page of the portal

# What happened, and what to do next, per reason: (status, title, sentence).
SAID: dict[No, tuple[int, str, str]] = {
    No.ENTER: (
        403,
        "Open this notebook from the portal",
        "This browser has not entered it, or you have signed out since. Open it from its page in the portal. If that brings"
        " you back here, your browser refuses the cookie of this address: over plain http, Chrome, Edge and Firefox accept it.",
    ),
    No.CODE: (
        403,
        "This link no longer opens the notebook",
        "A link works once and for one minute. Open the notebook again from its page in the portal.",
    ),
    No.NOT_ALLOWED: (403, "This is not your notebook", "Only its owner can open it."),
    No.STARTING: (503, "This notebook is starting", "It opens as soon as it answers; its page in the portal shows each step."),
    No.ENDED: (410, "This notebook has ended", "Its files are kept in your home and will be there in your next notebook."),
}

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title><style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
body {{ display: grid; place-content: center; min-height: 100vh; margin: 0; padding: 0 24px }}
main {{ max-width: 34rem }} h1 {{ font-size: 1.25rem; margin: 0 0 8px }} p {{ margin: 0 0 16px }}
</style></head><body><main><h1>{title}</h1><p>{sentence}</p><p><a href="{link}">{link_text}</a></p></main></body></html>
"""


def refusal(request: web.Request, no: No, workload: str = "") -> web.Response:
    """Why this workspace is not reached."""
    status, title, sentence = SAID[no]
    return say(request, status, title, sentence, workload)


def say(request: web.Request, status: int, title: str, sentence: str, workload: str = "") -> web.Response:
    """A page for a person, JSON for a program."""
    headers = {**HEADERS, **({"Retry-After": "2"} if status == 503 else {})}
    if "text/html" not in request.headers.get("Accept", ""):
        return web.json_response({"title": title, "message": sentence}, status=status, headers=headers)
    link = settings.GPUPOOL_PORTAL_URL + (PORTAL_PAGE.format(workload) if workload else "/")
    text = PAGE.format(
        title=html.escape(title),
        sentence=html.escape(sentence),
        link=html.escape(link),
        link_text="Its page in the portal" if workload else "To the portal",
    )
    return web.Response(status=status, text=text, content_type="text/html", headers=headers)
