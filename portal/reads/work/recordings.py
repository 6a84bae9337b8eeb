"""Read recordings of the engine's input, one per planning cycle."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import Http404, HttpResponse

from scheduler.cycle import recording
from scheduler.models import Decision, Recording, Workload


def latest_recordings(about: Workload | None = None) -> QuerySet[Recording]:
    """Return recordings, newest first; with ``about``, only of cycles that decided about this workload."""
    rows = Recording.objects.order_by("-pk")
    if about is None:
        return rows
    # A decision and the recording of its cycle have the same timestamp.
    return rows.filter(at__in=Decision.objects.filter(workload=about).values("at"))


def as_download(pk: int) -> HttpResponse:
    """Return one recording as the file that ``manage.py replay_snapshot`` reads.

    Raises Http404 if it was deleted.
    """
    try:
        text = recording.recording_file_text(pk)
    except recording.RecordingNotFound:
        raise Http404 from None
    name = f'attachment; filename="recording-{pk}.json"'
    return HttpResponse(text, content_type="application/json", headers={"Content-Disposition": name})
