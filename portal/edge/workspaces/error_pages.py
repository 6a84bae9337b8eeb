"""Build the edge's own pages for refusals and errors.

Every value in a page is escaped. Programs get JSON instead of a page.
"""

from __future__ import annotations

import html

from aiohttp import web
from django.conf import settings

from portal.edge.workspaces.access import AccessRefusal
from portal.wording.pages import workspace_pages

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

# A copy of the portal's URL pattern, so that the edge need not import the portal's pages.
NOTEBOOK_PAGE_PATH = "/notebooks/{}/"

ACCESS_REFUSAL_STATUS: dict[AccessRefusal, int] = {
    AccessRefusal.ENTER: 403,
    AccessRefusal.CODE: 403,
    AccessRefusal.NOT_ALLOWED: 403,
    AccessRefusal.STARTING: 503,
    AccessRefusal.ENDED: 410,
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
    """Return the page that explains why access to a workspace is refused."""
    title, sentence = workspace_pages.ACCESS_REFUSALS[no]
    return error_response(request, ACCESS_REFUSAL_STATUS[no], title, sentence, workload)


def error_response(
    request: web.Request, status: int, title: str, sentence: str, workload: str = ""
) -> web.Response:
    """Return an error page if the client accepts HTML, otherwise JSON."""
    headers = {**SECURITY_HEADERS, **({"Retry-After": "2"} if status == 503 else {})}
    if "text/html" not in request.headers.get("Accept", ""):
        return web.json_response({"title": title, "message": sentence}, status=status, headers=headers)
    link = settings.GPUPOOL_PORTAL_URL + (NOTEBOOK_PAGE_PATH.format(workload) if workload else "/")
    text = PAGE_TEMPLATE.format(
        title=html.escape(title),
        sentence=html.escape(sentence),
        link=html.escape(link),
        link_text=workspace_pages.PORTAL_LINK if workload else "To the portal",
    )
    return web.Response(status=status, text=text, content_type="text/html", headers=headers)
