"""What the engine planned on, cycle by cycle."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import Http404, HttpResponse

from scheduler.cycle import recording
from scheduler.models import Decision, Recording, Workload


def latest_recordings(about: Workload | None = None) -> QuerySet[Recording]:
    """Recordings, the latest first; of those ``about`` a workload only where something was decided about it."""
    rows = Recording.objects.order_by("-pk")
    if about is None:
        return rows
    # A decision and its recording carry the moment of the same apply.
    return rows.filter(at__in=Decision.objects.filter(workload=about).values("at"))


def as_download(pk: int) -> HttpResponse:
    """One recording as the file that ``manage.py replay_snapshot`` reads, or Http404: it may be forgotten by now."""
    try:
        text = recording.recording_file_text(pk)
    except recording.RecordingNotFound:
        raise Http404 from None
    name = f'attachment; filename="recording-{pk}.json"'
    return HttpResponse(text, content_type="application/json", headers={"Content-Disposition": name})
