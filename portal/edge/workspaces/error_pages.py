"""The edge's own pages for refusals and errors. Every value is escaped; programs get JSON."""

from __future__ import annotations

import html

from aiohttp import web
from django.conf import settings

from portal.edge.workspaces.access import AccessRefusal

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

NOTEBOOK_PAGE_PATH = "/notebooks/{}/"  # a copy, so that the edge need not load the portal's pages

# By reason: (status, title, sentence with the next step).
ACCESS_REFUSAL_PAGES: dict[AccessRefusal, tuple[int, str, str]] = {
    AccessRefusal.ENTER: (
        403,
        "Open this notebook from the portal",
        "This browser has not entered it, or you have signed out since. Open it from its page in the portal."
        " If that brings you back here, your browser refuses the cookie of this address:"
        " over plain http, Chrome, Edge and Firefox accept it.",
    ),
    AccessRefusal.CODE: (
        403,
        "This link no longer opens the notebook",
        "A link works once and for one minute. Open the notebook again from its page in the portal.",
    ),
    AccessRefusal.NOT_ALLOWED: (403, "This is not your notebook", "Only its owner can open it."),
    AccessRefusal.STARTING: (
        503,
        "This notebook is starting",
        "It opens as soon as it answers; its page in the portal shows each step.",
    ),
    AccessRefusal.ENDED: (
        410,
        "This notebook has ended",
        "Its files are kept in your home and will be there in your next notebook.",
    ),
}

PAGE_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
body {{ display: grid; place-content: center; min-height: 100vh; margin: 0; padding: 0 24px }}
main {{ max-width: 34rem }} h1 {{ font-size: 1.25rem; margin: 0 0 8px }} p {{ margin: 0 0 16px }}
</style></head><body><main><h1>{title}</h1><p>{sentence}</p>
<p><a href="{link}">{link_text}</a></p></main></body></html>
"""


def refusal_response(request: web.Request, no: AccessRefusal, workload: str = "") -> web.Response:
    """Return the page that explains why a workspace is refused."""
    status, title, sentence = ACCESS_REFUSAL_PAGES[no]
    return error_response(request, status, title, sentence, workload)


def error_response(
    request: web.Request, status: int, title: str, sentence: str, workload: str = ""
) -> web.Response:
    """Return an error page for a person, or JSON for a program."""
    headers = {**SECURITY_HEADERS, **({"Retry-After": "2"} if status == 503 else {})}
    if "text/html" not in request.headers.get("Accept", ""):
        return web.json_response({"title": title, "message": sentence}, status=status, headers=headers)
    link = settings.GPUPOOL_PORTAL_URL + (NOTEBOOK_PAGE_PATH.format(workload) if workload else "/")
    text = PAGE_TEMPLATE.format(
        title=html.escape(title),
        sentence=html.escape(sentence),
        link=html.escape(link),
        link_text="Its page in the portal" if workload else "To the portal",
    )
    return web.Response(status=status, text=text, content_type="text/html", headers=headers)
