"""Verbs on hosts: adding them, taking them out and giving them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from portal import policy
from portal.errors import Conflict
from portal.models import User
from portal.services import audit
from portal.validation import HOST_NAME, Checks, words_of_why
from portal.wording import host_texts
from scheduler import attestation
from scheduler import services as engine
from scheduler.models import Host, MaintenanceWindow, Pool, Reservation, Workload
from scheduler.states import AdminState, ReservationState, WorkloadState

LONGEST_MAINTENANCE = timedelta(days=90)


def add_host(
    *, actor: User, pool: Pool, name: str, now: datetime, labels: dict[str, str] | None = None, via: str = "web"
) -> tuple[Host, str]:
    """Make a host known and give the token with which its agent joins: once, within 15 minutes; only its hash is kept.

    Raises Invalid, NotAllowed, Conflict when the name is taken.
    """
    policy.require(actor, "host.change")
    checks = Checks()
    name = checks.pattern("name", name, HOST_NAME, "1 to 63 small letters, digits, dots and dashes, such as gpu-01")
    clean = checks.labels("labels", labels or {})
    checks.done()
    try:
        with transaction.atomic():
            host = engine.add_host(pool=pool, name=name, labels=clean, now=now)
            text = engine.issue_join_token(host, now=now)
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="add_host",
                target=host,
                after={"pool": pool.slug, "name": name, "labels": clean},
            )
    except IntegrityError:
        raise Conflict(f"name is {name}; a host of that name exists already.", field="name") from None
    return host, text


def new_join_token(*, actor: User, host: Host, now: datetime, via: str = "web") -> str:
    """Another token for a host whose first one ran out. Tokens not used yet stop working. Raises NotAllowed."""
    policy.require(actor, "host.change")
    with transaction.atomic():
        text = engine.issue_join_token(host, now=now)
        audit.record(actor=actor, via=via, now=now, verb="new_join_token", target=host)
    return text


def revoke_host(*, actor: User, host: Host, now: datetime, why: str = "", via: str = "web") -> Host:
    """Take the agent's credential away: it must join again with a new token. Raises Invalid, NotAllowed."""
    policy.require(actor, "host.change")
    why = words_of_why(why)
    with transaction.atomic():
        engine.revoke_credential(host, now=now)
        audit.record(actor=actor, via=via, now=now, verb="revoke_host", target=host, why=why)
    return host


def effect_of_drain(host: Host, now: datetime) -> dict[str, Any]:
    """What cordoning or draining it touches. Reads only.

    ``workloads``: those with a part on it, soonest end first (each a Workload with project and owner); ``preemptible`` and
    ``others``: how many of each; ``gpus``: how many it has; ``reservations``: active ones bound to its GPUs; ``last_end``: when
    the last one is over by its limit (datetime or None).
    """
    alive = (
        WorkloadState.PLACED,
        WorkloadState.STARTING,
        WorkloadState.RUNNING,
        WorkloadState.NOTICE,
        WorkloadState.STOPPING,
    )
    found = Workload.objects.filter(state__in=alive, runs__host=host, runs__ended_at=None).distinct()
    workloads = sorted(found.select_related("project__team", "owner"), key=lambda w: (_limit(w, now), w.pk))
    bound = Reservation.objects.filter(state=ReservationState.ACTIVE, bound_units__unit__gpu__host=host).distinct()
    preemptible = sum(1 for workload in workloads if workload.preemptible)
    return {
        "workloads": workloads,
        "preemptible": preemptible,
        "others": len(workloads) - preemptible,
        "gpus": host.gpus.filter(retired_at=None).count(),
        "reservations": list(bound.select_related("project__team").order_by("end", "pk")),
        "last_end": max((_limit(workload, now) for workload in workloads), default=None),
    }


def cordon_host(*, actor: User, host: Host, why: str, now: datetime, via: str = "web") -> Host:
    """Nothing new starts there; what runs goes on. Raises Invalid, Conflict, NotAllowed."""
    return _change(actor, host, AdminState.CORDONED, why, now, via, "cordon_host")


def drain_host(*, actor: User, host: Host, why: str, now: datetime, via: str = "web") -> Host:
    """Nothing new starts there, and what runs is asked to checkpoint and go. Raises Invalid, Conflict, NotAllowed."""
    return _change(actor, host, AdminState.DRAINING, why, now, via, "drain_host")


def return_host(*, actor: User, host: Host, now: datetime, why: str = "", via: str = "web") -> Host:
    """Back in service; an operator who returns a quarantined host attests that nothing of before runs on it.

    Raises Invalid, Conflict, NotAllowed.
    """
    return _change(actor, host, AdminState.IN_SERVICE, why, now, via, "return_host")


def attest_off(*, actor: User, host: Host, why: str, now: datetime, via: str = "web") -> Host:
    """The actor has seen that the machine is off: its work may start elsewhere at once. Raises Invalid, Conflict, NotAllowed."""
    policy.require(actor, "host.change")
    why = words_of_why(why)
    told = ("lease_state", "last_sync_at")
    with transaction.atomic():
        before = audit.facts(host, *told)
        if not attestation.attest_off(host, reason=f"{attestation.SEEN_OFF}{actor.get_username()}: {why}"[:300], now=now):
            raise Conflict(
                f"{host.name}'s agent speaks, or never has: the machine is not off. Drain it, and its work goes elsewhere."
            )
        audit.record(
            actor=actor, via=via, now=now, verb="attest_host_off", target=host, why=why, before=before,
            after=audit.facts(host, *told),
        )  # fmt: skip
    return host


def set_maintenance(
    *, actor: User, host: Host, start: datetime, end: datetime, why: str, now: datetime, via: str = "web"
) -> MaintenanceWindow:
    """Announce a window in which the host is away: nothing is planned into it. Raises Invalid, NotAllowed, and Conflict where
    another of its windows has a part of that time."""
    policy.require(actor, "host.change")
    checks = Checks()
    first, last = checks.moment("start", start), checks.moment("end", end)
    why = checks.text("why", why, most=300)
    if not checks.problems:
        if last <= first or last - first > LONGEST_MAINTENANCE:
            checks.note(
                "end",
                last.isoformat(),
                f"end is {last.isoformat()}; allowed: after the start and within {LONGEST_MAINTENANCE.days} days of it.",
            )
        if last <= now:
            checks.note(
                "end", last.isoformat(), f"end is {last.isoformat()}, which is past; allowed: after {now.isoformat()}."
            )
    checks.done()
    with transaction.atomic():
        try:
            window = engine.set_maintenance(host, start=first, end=last, reason=why, now=now)
        except engine.Refused as refused:
            raise overlap(refused.numbers) from None
        audit.record(
            actor=actor, via=via, now=now, verb="set_maintenance", target=host, why=why,
            after={"start": first.isoformat(), "end": last.isoformat()},
        )  # fmt: skip
    return window


def overlap(other: Mapping[str, Any]) -> Conflict:
    """Why a window can't be announced beside this other one of its host (``engine.other_window``)."""
    code = "windows_overlap"
    return Conflict(host_texts.MAINTENANCE_REFUSED[code](other), field="start", code=code, numbers=other)


def _change(actor: User, host: Host, new: AdminState, why: str, now: datetime, via: str, verb: str) -> Host:
    policy.require(actor, "host.change")
    why = words_of_why(why)
    verbs: dict[AdminState, Callable[..., bool]] = {
        AdminState.CORDONED: engine.cordon_host,
        AdminState.DRAINING: engine.drain_host,
        AdminState.IN_SERVICE: engine.return_host,
    }
    told = ("admin_state", "repair_state", "state_reason")
    with transaction.atomic():
        before = audit.facts(host, *told)
        if not verbs[new](host, reason=why, now=now):
            host.refresh_from_db()
            raise Conflict(
                f"{host.name} is {host.admin_state.replace('_', ' ')}; it can't become {new.value.replace('_', ' ')}."
            )
        host.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb=verb,
            target=host,
            why=why,
            before=before,
            after=audit.facts(host, *told),
        )
    return host


def _limit(workload: Workload, now: datetime) -> datetime:
    return (workload.started_at or now) + timedelta(seconds=workload.max_runtime_seconds)
