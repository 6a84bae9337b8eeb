"""Find stray processes, for notices to operators and to the owners of the processes.

A stray process uses a GPU without a run of gpupool.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta

from portal.models import User
from portal.notices.pending import PendingNotice
from portal.notices.recipients import operator_ids
from scheduler.models import StrayAction
from telemetry.health import stray_processes
from telemetry.models import HealthEvent, HealthRule, Stray

# At most this many notices about one host in a clock hour. Further notices are combined into digests.
MAX_STRAY_NOTICES_PER_HOUR = 5
STRAY_DIGEST_INTERVAL = timedelta(minutes=10)
MAX_STRAYS_NAMED = 5  # names in one notice


def stray_digests(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield notices to operators about stray processes for which a health rule took an action.

    Each process is reported once. The processes that were found on a host at the same time share a notice.
    After MAX_STRAY_NOTICES_PER_HOUR notices about a host in a clock hour, one notice in each
    STRAY_DIGEST_INTERVAL combines all further processes.
    """
    hour = (since - STRAY_DIGEST_INTERVAL).replace(minute=0, second=0, microsecond=0)
    found = HealthEvent.objects.filter(
        code=stray_processes.STRAY_CODE, handled_at__gte=hour, handled_at__lte=now
    )
    found = found.exclude(action_taken__in=("", HealthRule.Action.NOTE)).select_related("host__pool", "gpu")
    events = list(found.order_by("handled_at", "pk"))
    before = stray_processes.previously_reported(events) if events else set()
    looks: dict[tuple[int, datetime], list[datetime]] = defaultdict(list)
    together: dict[tuple[str, datetime], list[HealthEvent]] = defaultdict(list)
    for event in events:
        at = event.handled_at
        if at is None or event.pk in before:
            continue
        looked = looks[event.host_id, at.replace(minute=0, second=0, microsecond=0)]
        if at not in looked:
            looked.append(at)
        is_late = looked.index(at) >= MAX_STRAY_NOTICES_PER_HOUR
        due = _end_of_digest_interval(at) if is_late else at
        source = f"stray{'s' if is_late else ''} on {event.host_id}:{event.action_taken}:{due:%Y%m%d%H%M%S%f}"
        together[source, due].append(event)
    for (source, due), those in together.items():
        if since < due <= now:
            descriptions = [
                f"GPU {event.gpu.index}: {event.detail}" if event.gpu else event.detail for event in those
            ]
            numbers = {
                "host": those[0].host.name,
                "told": descriptions[:MAX_STRAYS_NAMED],
                "more": max(0, len(descriptions) - MAX_STRAYS_NAMED),
                "action": those[0].action_taken,
                "ends": those[0].host.pool.stray_action == StrayAction.END,
            }
            yield PendingNotice("strays_found", source, operator_ids(), numbers)


def _end_of_digest_interval(at: datetime) -> datetime:
    """Return the end of the ten-minute interval that contains ``at``."""
    return at.replace(minute=at.minute // 10 * 10, second=0, microsecond=0) + STRAY_DIGEST_INTERVAL


def strays_of_users(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each new stray process to its owner.

    The owner is the portal user with the same user name. There is no notice in a pool whose policy only
    reports stray processes.
    """
    seen = Stray.objects.filter(first_seen__gt=since, first_seen__lte=now, run="").exclude(
        host__pool__stray_action=StrayAction.REPORT
    )
    for stray in seen.select_related("host", "gpu").order_by("pk"):
        users = tuple(User.objects.filter(username=stray.user, is_active=True).values_list("pk", flat=True))
        numbers = {
            "process": stray.name or "?",
            "pid": stray.pid,
            "gpu": stray.gpu.index,
            "host": stray.host.name,
        }
        yield PendingNotice("stray_is_yours", f"stray:{stray.pk}", users, numbers)
