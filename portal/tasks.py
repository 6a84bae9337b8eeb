"""Run the portal's periodic tasks: notices, idle notebooks, expired rows, values in the cache.

A repeated run of a task does no harm. Each task reads the clock once and passes the time on.
"""

from __future__ import annotations

import logging

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from portal.models import Organisation
from portal.notices import delivery
from portal.notices.channels import sending
from portal.reads.fleet.demand_forecast import warm_demand
from portal.reads.utilisation.fleet_map import warm_host_days
from portal.reads.utilisation.period import zone_of_organisation
from portal.redis_state.announced_maintenance import publish_maintenance
from portal.services import idempotency
from portal.services.audit_trail import seals, stream, verification
from portal.services.fleet import pools
from portal.services.money import unusual_spend
from portal.services.people.identity import directory_sync
from portal.services.people.leaving import leaver_work
from portal.sweeps import expired_sessions, expired_submissions, idle_notebooks
from scheduler.coordination import clock_correction
from scheduler.coordination.database_maintenance import current_maintenance

log = logging.getLogger(__name__)

SYNC_LIMIT_SECONDS = 1800  # reading a directory with thousands of people takes minutes


@shared_task(name="portal.tasks.notices")  # type: ignore[misc]
def notices() -> int:
    """Write notices about new events. Return the number of new notices.

    Also publish the announced maintenance of the database again, in case Redis has lost it.
    """
    now = timezone.now()
    publish_maintenance(current_maintenance(now))
    return delivery.write_notices(now)


@shared_task(name="portal.tasks.send_notices")  # type: ignore[misc]
def send_notices() -> int:
    """Send the messages that are due to notice channels. Return how many were sent."""
    return sending.send_due_messages(timezone.now)


@shared_task(name="portal.tasks.idle_cull")  # type: ignore[misc]
def idle_cull() -> dict[str, int]:
    """Warn about idle notebooks or stop them. Return the number of notebooks for each verdict."""
    return clock_correction.with_steady_clock(lambda clock: idle_notebooks.stop_idle_notebooks(clock.wall))


@shared_task(name="portal.tasks.expire_submissions")  # type: ignore[misc]
def expire_submissions() -> int:
    """Expire the requests for reservations that nobody has decided before their start.

    Return the number of expired requests.
    """
    return clock_correction.with_steady_clock(
        lambda clock: expired_submissions.expire_submissions(clock.wall)
    )


@shared_task(name="portal.tasks.demand_isolation")  # type: ignore[misc]
def demand_isolation() -> int:
    """Let new pools demand the isolation of their first hosts. Return the number of pools."""
    return pools.demand_isolation_of_first_hosts(timezone.now())


@shared_task(name="portal.tasks.settle_leavers")  # type: ignore[misc]
def settle_leavers() -> int:
    """Settle the work of people whose accounts are closed. Return the number of workloads."""
    return clock_correction.with_steady_clock(lambda clock: leaver_work.apply_leaver_policies(clock.wall))


@shared_task(name="portal.tasks.forget_expired")  # type: ignore[misc]
def forget_expired() -> int:
    """Delete expired sessions, one-time codes, answers of repeatable requests and old notices.

    Return the number of deleted rows.
    """
    now = timezone.now()
    return (
        expired_sessions.delete_expired_sessions(now)
        + idempotency.delete_expired_answers(now)
        + delivery.delete_old_notices(now)
    )


@shared_task(name="portal.tasks.seal_audit")  # type: ignore[misc]
def seal_audit() -> int:
    """Seal new audit records and send them to the receiver, if there is one. Return the number of records."""
    now = timezone.now()
    sealed = seals.seal_new_events(now)
    if settings.GPUPOOL_AUDIT_STREAM:
        stream.stream_records(settings.GPUPOOL_AUDIT_STREAM, settings.GPUPOOL_AUDIT_STREAM_TOKEN, now)
    return sealed


@shared_task(name="portal.tasks.check_audit")  # type: ignore[misc]
def check_audit() -> int:
    """Check some seals of the audit records. Return the number of differences."""
    found = verification.check_next_seals(timezone.now())
    if found:
        log.error("%d audit records or seals were removed or changed; see `manage.py verify_audit`", found)
    return found


@shared_task(
    name="portal.tasks.sync_directories",
    time_limit=SYNC_LIMIT_SECONDS,
    soft_time_limit=SYNC_LIMIT_SECONDS - 15,
)  # type: ignore[misc]
def sync_directories() -> int:
    """Sync the people of each LDAP directory that is due, once a day. Return the number of syncs."""
    return directory_sync.sync_due_directories(timezone.now())


@shared_task(name="portal.tasks.unusual_spend")  # type: ignore[misc]
def search_unusual_spend() -> int:
    """Search the month that is due for unusual spend. Return the number of findings."""
    return unusual_spend.search_next_month(timezone.now()) or 0


@shared_task(name="portal.tasks.warm_utilisation")  # type: ignore[misc]
def warm_utilisation() -> None:
    """Read past days for the utilisation page into the cache, unless they are there."""
    now = timezone.now()
    organisation = Organisation.objects.first()
    warm_demand(now, zone_of_organisation(organisation.time_zone if organisation else ""))
    warm_host_days(now)
