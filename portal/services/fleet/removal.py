"""Remove hosts and pools, and move hosts between pools. The previews make the same checks as the actions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction

from portal import policy
from portal.input_checks import checked_reason
from portal.models import User
from portal.services import audit
from portal.services.removal_effect import (
    RemovalEffect,
    refusal_of,
    waiting_submissions,
    withdraw_submissions,
)
from scheduler import services as scheduling
from scheduler.models import Host, Pool, Quota, Reservation
from scheduler.reads import explanations


def preview_host_removal(*, actor: User, host: Host, now: datetime) -> RemovalEffect:
    """Return the effect of removing a host. Raises NotAllowed."""
    policy.require(actor, "host.change")
    found = explanations.drain_effect(host, now)
    return RemovalEffect(
        "remove_host",
        host.name,
        gpus=host.gpus.filter(retired_at=None).count(),
        pool=host.pool.name,
        reservations=_reservations(set(found.reservations) - set(found.broken_reservations)),
        unkept=_reservations(found.broken_reservations),
        **refusal_of(lambda: scheduling.check_host_removal(host)),
    )


def remove_host(*, actor: User, host: Host, now: datetime, why: str = "", via: str = "web") -> Host:
    """Remove a host. Its history stays, and its name may be used again.

    Raises Invalid, NotAllowed. Raises OperationRejected while work runs on the host.
    """
    policy.require(actor, "host.change")
    why = checked_reason(why)
    with transaction.atomic():
        before = {**audit.audited_fields(host, "name", "admin_state"), "pool": host.pool.slug}
        scheduling.remove_host(host, reason=why, now=now)
        audit.record(actor=actor, via=via, now=now, verb="remove_host", target=host, before=before, why=why)
    scheduling.record_unserved_reservations(host.pool, now=now)
    return host


def preview_host_move(*, actor: User, host: Host, pool: Pool, now: datetime) -> RemovalEffect:
    """Return the effect of moving a host to ``pool``. It includes the quotas of both pools.

    Raises NotAllowed.
    """
    policy.require(actor, "host.change")
    found = explanations.drain_effect(host, now)
    models = host.gpus.filter(retired_at=None).values("model")
    return RemovalEffect(
        "move_host",
        host.name,
        gpus=host.gpus.filter(retired_at=None).count(),
        pool=pool.name,
        reservations=_reservations(set(found.reservations) - set(found.broken_reservations)),
        unkept=_reservations(found.broken_reservations),
        quotas=_quotas(pool__in=[host.pool, pool], model__in=models),
        **refusal_of(lambda: scheduling.check_host_move(host, pool, now)),
    )


def move_host(*, actor: User, host: Host, pool: Pool, now: datetime, why: str = "", via: str = "web") -> Host:
    """Move a host to another pool. Its use and charges until now stay with its earlier pool.

    Raises Invalid, NotAllowed. Raises OperationRejected while the host has work or a reservation needs it.
    """
    policy.require(actor, "host.change")
    why = checked_reason(why)
    with transaction.atomic():
        before = {"pool": host.pool.slug}
        scheduling.move_host(host, pool, reason=why, now=now)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="move_host",
            target=host,
            before=before,
            after={"pool": pool.slug},
            why=why,
        )
    return host


def preview_pool_removal(*, actor: User, pool: Pool, now: datetime) -> RemovalEffect:
    """Return the effect of removing a pool. Raises NotAllowed."""
    policy.require(actor, "pool.change")
    return RemovalEffect(
        "remove_pool",
        pool.name,
        pool=pool.name,
        quotas=_quotas(pool=pool),
        submissions=waiting_submissions(pool=pool),
        **refusal_of(lambda: scheduling.check_pool_removal(pool, now)),
    )


def remove_pool(*, actor: User, pool: Pool, now: datetime, why: str = "", via: str = "web") -> Pool:
    """Remove a pool. Its quotas end, and its history stays.

    Raises Invalid, NotAllowed. Raises OperationRejected while the pool has hosts, work or reservations.
    """
    policy.require(actor, "pool.change")
    why = checked_reason(why)
    with transaction.atomic():
        effect = preview_pool_removal(actor=actor, pool=pool, now=now)
        authors = withdraw_submissions(pool=pool)
        scheduling.remove_pool(pool, now=now)
        authors |= withdraw_submissions(pool=pool)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="remove_pool",
            target=pool,
            before={
                **audit.audited_fields(pool, "name", "kind"),
                "teams": sorted({quota.team.slug for quota in effect.quotas}),
                "authors": sorted(authors),
            },
            why=why,
        )
    return pool


def _quotas(**of: object) -> list[Quota]:
    rows = Quota.objects.filter(**of).select_related("team", "pool")
    return list(rows.order_by("pool__name", "model", "team__name"))


def _reservations(ids: Iterable[int]) -> list[Reservation]:
    rows = Reservation.objects.filter(pk__in=ids).select_related("project__team")
    return list(rows.order_by("start", "pk"))
