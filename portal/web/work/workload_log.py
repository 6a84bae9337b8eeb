"""Serve a run's log: new text for the page, and the whole log as a download."""

from __future__ import annotations

import uuid
from datetime import timedelta
from io import BytesIO
from typing import Any

from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.web.work.workload_actions import get_workload_or_404
from portal.wording.pages import workload_pages
from scheduler.models import Run, Workload
from scheduler.runs import logs

LOG_TAIL_BYTES = 64 * 1024
LOG_CHUNK_BYTES = 128 * 1024
LOG_DRAIN_PERIOD = timedelta(seconds=30)  # a log can still grow for this time after the run's end


@sign_in_required
def log(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Render the log of the run that ``?run=`` names, from byte ``?offset=`` on.

    ``?download=1`` returns the whole log as a file.
    """
    workload = get_workload_or_404(request, public_id)
    policy.require(current_user(request), "workload.logs", workload)
    run = requested_run(request, workload)
    if run is None:
        raise Http404(workload_pages.NO_SUCH_RUN)
    if request.GET.get("download"):
        return _download_log(workload, run)
    offset = _parse_offset(request.GET.get("offset"))
    text, end = logs.read_log(run.public_id, offset, LOG_CHUNK_BYTES)
    # The log is shorter than before, so it was truncated: reload the whole page.
    if end < offset:
        return HttpResponse(status=204, headers={"HX-Refresh": "true"})
    return render(request, "work/log_more.html", {"text": text, "log": log_state(workload, run, end)})


def _download_log(workload: Workload, run: Run) -> HttpResponseBase:
    written = logs.read_whole_log(run.public_id)
    if written is None:
        raise Http404(workload_pages.EMPTY_LOG)
    name = f"{workload.public_id}-attempt-{run.attempt}-rank-{run.rank}.log"
    return FileResponse(
        BytesIO(written), as_attachment=True, filename=name, content_type="text/plain; charset=utf-8"
    )


def requested_run(request: HttpRequest, workload: Workload) -> Run | None:
    """Return the run that ``?run=`` names; without it, the first run of the last attempt.

    Return None if there is no such run.
    """
    runs = workload.runs.select_related("host").order_by("-attempt", "rank")
    given = request.GET.get("run")
    if not given:
        return runs.first()
    try:
        return runs.filter(public_id=uuid.UUID(given)).first()
    except ValueError:
        return None


def log_state(workload: Workload, run: Run, end: int) -> dict[str, Any]:
    """Return the URLs and the event stream of a run's log.

    The page already has the bytes up to ``end``. ``goes_on`` is True while the log can grow.
    """
    base = reverse("job-log", args=[workload.public_id])
    return {
        "more_url": f"{base}?run={run.public_id}&offset={end}",
        "download_url": f"{base}?run={run.public_id}&download=1",
        "goes_on": run.ended_at is None or timezone.now() - run.ended_at < LOG_DRAIN_PERIOD,
        "connect": live_refresh.events_url([f"log:{run.public_id}"]),
        "end": end,
    }


def _parse_offset(given: str | None) -> int:
    return int(given) if given and given.isascii() and given.isdigit() and len(given) < 16 else 0
