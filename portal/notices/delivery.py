"""Write notices about events.

A notice names its event as ``source``, so a repeated run writes no second notice about the event.

``write_notices(now)`` reads the rows since its previous run (see ``NoticeMark``). The periods of two runs
overlap, because a transaction may commit later than the times in its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from portal.models import (
    NoticeMark,
    Notification,
)
from portal.notices.adjustments import adjustments_to_decide, decided_adjustments
from portal.notices.alerts import begun_alerts, planned_stops_of_unused_work
from portal.notices.approvals import (
    decided_submissions,
    expired_submissions,
    late_submissions,
    submissions_to_approve,
)
from portal.notices.budgets import budgets_reached
from portal.notices.channels.failures import failing_channels
from portal.notices.channels.outbox import delete_old_messages, write_messages
from portal.notices.closes import months_to_close, questions_about_spend, statements_made
from portal.notices.hosts import (
    finished_diagnostics,
    finished_geometry_changes,
    full_disks,
    hardware_events,
    host_failures,
)
from portal.notices.maintenance import database_maintenance, maintenance_windows
from portal.notices.matters import set_matters
from portal.notices.pending import PendingNotice
from portal.notices.recipients import service_account_owners
from portal.notices.removals import leads_in_charge, removals, work_of_leavers
from portal.notices.reservations import (
    ending_reservations,
    rebound_reservations,
    released_reservations,
    reservations_at_risk,
    reservations_with_unusable_units,
    reservations_without_units,
    upcoming_reservations,
)
from portal.notices.stray_processes import stray_digests, strays_of_users
from portal.notices.tokens import ending_tokens
from portal.notices.workloads import (
    advised_workloads,
    ended_arrays,
    ended_workloads,
    evicted_workloads,
    forced_moves_of_workloads,
    idle_warnings,
    shifted_expected_starts,
    started_arrays,
    started_workloads,
)
from portal.redis_state.page_topics import user_topic
from scheduler.state import nudge

LOOKBACK_OVERLAP = timedelta(minutes=2)
DELETE_BATCH_SIZE = 5_000
INITIAL_LOOKBACK = timedelta(hours=1)


def write_notices(now: datetime) -> int:
    """Write the notices about all events since the last run. Return the number of new notices."""
    with transaction.atomic():
        since = _lookback_start(now)
        owners = service_account_owners()
        rows: dict[tuple[int, str], Notification] = {}
        events = [notice for source in NOTICE_SOURCES for notice in source(since, now)]
        in_charge = leads_in_charge({notice.workload for notice in events if notice.workload is not None})
        for notice in events:
            for user in _recipients(notice, owners, in_charge):
                row = Notification(
                    user_id=user,
                    kind=notice.kind,
                    numbers=notice.numbers,
                    workload_id=notice.workload,
                    reservation_id=notice.reservation,
                    submission_id=notice.submission,
                    source=notice.source,
                    at=now,
                )
                rows.setdefault((user, notice.source), row)
        sources = {source for _, source in rows}
        known = set(Notification.objects.filter(source__in=sources).values_list("user_id", "source"))
        new_rows = [row for key, row in rows.items() if key not in known]
        set_matters(new_rows)
        Notification.objects.bulk_create(new_rows, ignore_conflicts=True)
        write_messages(new_rows, events, now)
        NoticeMark.objects.update_or_create(pk=1, defaults={"looked_until": now})
        nudge.pages(*(user_topic(user) for user in sorted({row.user_id for row in new_rows})))
    return len(new_rows)


def delete_old_notices(now: datetime) -> int:
    """Delete notices and sent messages that are older than GPUPOOL_NOTICE_DAYS, and return their number.

    At most DELETE_BATCH_SIZE notices and as many messages are deleted.
    """
    before = now - timedelta(days=settings.GPUPOOL_NOTICE_DAYS)
    old = Notification.objects.filter(at__lt=before).order_by("at").values_list("pk", flat=True)
    deleted = Notification.objects.filter(pk__in=list(old[:DELETE_BATCH_SIZE])).delete()[0]
    return deleted + delete_old_messages(before)


def _recipients(
    notice: PendingNotice, owners: Mapping[int, int], in_charge: Mapping[tuple[int, int], int]
) -> list[int]:
    """Return who gets a notice: leads for people who have left, and owners for service accounts.

    Nobody gets a notice of an own action.
    """
    present = {in_charge.get((notice.workload or 0, user), user) for user in notice.users}
    return sorted({owners.get(user, user) for user in present} - {notice.actor})


def _lookback_start(now: datetime) -> datetime:
    """Return the time from which the search for events begins.

    This time is LOOKBACK_OVERLAP before the end of the previous run's period.
    """
    mark = NoticeMark.objects.filter(pk=1).first()
    return (mark.looked_until if mark else now - INITIAL_LOOKBACK) - LOOKBACK_OVERLAP


NOTICE_SOURCES = (
    started_workloads,
    ended_workloads,
    advised_workloads,
    started_arrays,
    ended_arrays,
    evicted_workloads,
    idle_warnings,
    shifted_expected_starts,
    upcoming_reservations,
    ending_reservations,
    released_reservations,
    reservations_without_units,
    reservations_at_risk,
    submissions_to_approve,
    late_submissions,
    decided_submissions,
    expired_submissions,
    host_failures,
    full_disks,
    hardware_events,
    stray_digests,
    finished_diagnostics,
    finished_geometry_changes,
    strays_of_users,
    rebound_reservations,
    reservations_with_unusable_units,
    maintenance_windows,
    database_maintenance,
    removals,
    work_of_leavers,
    forced_moves_of_workloads,
    budgets_reached,
    months_to_close,
    questions_about_spend,
    statements_made,
    adjustments_to_decide,
    decided_adjustments,
    begun_alerts,
    planned_stops_of_unused_work,
    ending_tokens,
    failing_channels,
)
