"""Read recordings. A recording is the input of the engine in one planning cycle."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import Http404, HttpResponse

from scheduler.cycle import recording
from scheduler.models import Decision, Recording, Workload


def latest_recordings(about: Workload | None = None) -> QuerySet[Recording]:
    """Return recordings, newest first.

    With ``about``, return only the recordings of cycles that decided about this workload.
    """
    rows = Recording.objects.order_by("-pk")
    if about is None:
        return rows
    # A decision and the recording of its cycle have the same timestamp.
    return rows.filter(at__in=Decision.objects.filter(workload=about).values("at"))


def as_download(pk: int) -> HttpResponse:
    """Return one recording as a file that ``manage.py replay_snapshot`` can read.

    Raises Http404 if the recording was deleted.
    """
    try:
        text = recording.recording_file_text(pk)
    except recording.RecordingNotFound:
        raise Http404 from None
    name = f'attachment; filename="recording-{pk}.json"'
    return HttpResponse(text, content_type="application/json", headers={"Content-Disposition": name})
