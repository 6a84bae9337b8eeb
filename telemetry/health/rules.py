"""Apply the operators' health rules to hardware events. The number of automatic closures is limited."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from scheduler.coordination import locks
from scheduler.models import Gpu, Host
from scheduler.services.hosts import (
    cordon_for_fault,
    drain_for_fault,
    quarantine_gpu,
    trip_host,
)
from telemetry.health import circuit_breaker, distinct_owners, stray_processes
from telemetry.models import HealthEvent, HealthRule

EVENTS_PER_RUN = 200
PURGE_BATCH_SIZE = 5_000
Action = HealthRule.Action
HELD_BACK = "held_back"  # the action was not carried out, because the limit of automatic closures was reached
HOST_CLOSING_ACTIONS = (Action.CORDON, Action.DRAIN)
CLOSING_ACTIONS = (*HOST_CLOSING_ACTIONS, Action.QUARANTINE_GPU)
CLOSURE_WINDOW = timedelta(hours=1)
HOSTS_PER_CLOSURE = 5  # a pool may have one automatic closure for this many hosts, and always one
GPUS_PER_QUARANTINE = 8


def apply_rules_to_events(now: datetime) -> int:
    """Apply the rules to unhandled events. Return the number of events whose action changed something.

    Each event is claimed, so concurrent runs act on it only once.
    """
    rules = {rule.code: rule for rule in HealthRule.objects.all()}
    acted = 0
    waiting = (
        HealthEvent.objects.filter(handled_at=None).select_related("host__pool", "gpu").order_by("at", "pk")
    )
    for event in waiting[:EVENTS_PER_RUN]:
        with transaction.atomic():
            action = _action_by_rule(event, rules.get(event.code))
            if action in CLOSING_ACTIONS:
                # Lock the pool, so that concurrent runs do not exceed the limit together.
                locks.pools([event.host.pool_id])
                action = action if _within_closure_limit(event, action, now) else HELD_BACK
            claimed = HealthEvent.objects.filter(pk=event.pk, handled_at=None)
            if claimed.update(handled_at=now, action_taken=action) != 1:
                continue
            acted += _take_action(event, rules.get(event.code), action, now)
    return acted


def purge_old_events(now: datetime) -> int:
    """Delete handled events older than GPUPOOL_HEALTH_EVENT_DAYS, and return the number of deleted events.

    One call deletes at most PURGE_BATCH_SIZE events.
    """
    before = now - timedelta(days=settings.GPUPOOL_HEALTH_EVENT_DAYS)
    old = (
        HealthEvent.objects.filter(at__lt=before, handled_at__isnull=False)
        .order_by("at")
        .values_list("pk", flat=True)
    )
    return HealthEvent.objects.filter(pk__in=list(old[:PURGE_BATCH_SIZE])).delete()[0]


def _action_by_rule(event: HealthEvent, rule: HealthRule | None) -> str:
    """Return the rule's action if the event was repeated often enough in the window; otherwise ``note``."""
    if rule is None:
        return Action.NOTE
    if event.code == circuit_breaker.BREAKER_CODE:
        return rule.action  # the circuit breaker has already counted the failures
    since = event.at - timedelta(seconds=rule.window_seconds)
    same = HealthEvent.objects.filter(
        host=event.host_id, gpu=event.gpu_id, code=event.code, at__gt=since, at__lte=event.at
    )
    if same.count() < rule.repeats:
        return Action.NOTE
    if rule.counts == HealthRule.Counts.PEOPLE and rule.action in CLOSING_ACTIONS:
        return (
            rule.action
            if distinct_owners.count_distinct_causes(list(same), rule.repeats) >= rule.repeats
            else Action.NOTE
        )
    return rule.action


def _within_closure_limit(event: HealthEvent, action: str, now: datetime) -> bool:
    """Return True if one more host or GPU of the pool may be closed within CLOSURE_WINDOW.

    Events that programs can cause have a separate limit, so that they do not use up the limit of hardware
    faults.
    """
    cheap = [circuit_breaker.BREAKER_CODE, stray_processes.STRAY_CODE]
    cheap += HealthRule.objects.filter(counts=HealthRule.Counts.PEOPLE).values_list("code", flat=True)
    recent = HealthEvent.objects.filter(host__pool=event.host.pool_id, handled_at__gt=now - CLOSURE_WINDOW)
    recent = recent.filter(code__in=cheap) if event.code in cheap else recent.exclude(code__in=cheap)
    if action in HOST_CLOSING_ACTIONS:
        closed = set(recent.filter(action_taken__in=HOST_CLOSING_ACTIONS).values_list("host", flat=True)) - {
            event.host_id
        }
        hosts = Host.objects.filter(pool=event.host.pool_id).count()
        return len(closed) < max(1, hosts // HOSTS_PER_CLOSURE)
    out = set(recent.filter(action_taken=Action.QUARANTINE_GPU).values_list("gpu", flat=True)) - {
        event.gpu_id
    }
    gpus = Gpu.objects.filter(host__pool=event.host.pool_id, retired_at=None).count()
    return len(out) < max(1, gpus // GPUS_PER_QUARANTINE)


def public_detail(event: HealthEvent) -> str:
    """Return the part of an event's detail that everybody who sees the host may read.

    The driver's log names the pid and the command of the process. This part is removed, because only
    operators and auditors may know whose process it was.
    """
    if event.code == stray_processes.STRAY_CODE:
        return "a process outside workloads uses it"
    return event.detail.partition("pid=")[0].rstrip(", ")


def event_title(code: str, meaning: str) -> str:
    """Return the meaning of an event with its code, such as "GPU has fallen off the bus (xid:79)"."""
    return f"{meaning} ({code})" if meaning else code


def _take_action(event: HealthEvent, rule: HealthRule | None, action: str, now: datetime) -> bool:
    """Carry out ``action``. Return True if it changed something."""
    # The reason contains no private detail, because it appears on the host's page and in notices to the
    # owners of affected work.
    title, detail = event_title(event.code, rule.meaning if rule is not None else ""), public_detail(event)
    says_no_more = event.code == stray_processes.STRAY_CODE and rule is not None
    reason = (f"{title}: {detail}" if detail and not says_no_more else title)[:300]
    if event.code == circuit_breaker.BREAKER_CODE and action == Action.CORDON:
        return trip_host(event.host, reason=reason, now=now)  # running work continues
    if action == Action.CORDON:
        return cordon_for_fault(event.host, event.gpu, reason=reason, now=now)
    if action == Action.DRAIN:
        return drain_for_fault(event.host, reason=reason, now=now)
    if action == Action.QUARANTINE_GPU:
        return event.gpu is not None and quarantine_gpu(event.gpu, reason=reason, now=now)
    return False
