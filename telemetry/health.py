"""Hardware events to what the table says about them. Closing many hosts at once is left to a person."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from scheduler import locks
from scheduler.models import Gpu, Host
from scheduler.services.hosts import (
    cordon_for_fault,
    drain_for_fault,
    quarantine_gpu,
    trip_host,
)
from telemetry import breaker, causes, strays
from telemetry.models import HealthEvent, HealthRule

EVENTS_AT_ONCE = 200
FORGOTTEN_AT_ONCE = 5_000
Action = HealthRule.Action
HELD_BACK = "held_back"  # the table asked for more than is done without a person
CLOSES_HOST = (Action.CORDON, Action.DRAIN)
CLOSES = (*CLOSES_HOST, Action.QUARANTINE_GPU)
BREAKER_WINDOW = timedelta(hours=1)
HOSTS_PER_ACTION = 5  # of so many hosts of a pool one may be closed within the window; one always may
GPUS_PER_ACTION = 8


def handle_events(now: datetime) -> int:
    """Act on the events that nobody has looked at; how many were acted on. Each is claimed, so two runs act once."""
    rules = {rule.code: rule for rule in HealthRule.objects.all()}
    acted = 0
    waiting = HealthEvent.objects.filter(handled_at=None).select_related("host__pool", "gpu").order_by("at", "pk")
    for event in waiting[:EVENTS_AT_ONCE]:
        with transaction.atomic():
            action = _wanted(event, rules.get(event.code))
            if action in CLOSES:
                # Under the lock of the pool's row, so that two runs do not each close the last host that may be closed.
                locks.pools([event.host.pool_id])
                action = action if _allowed(event, action, now) else HELD_BACK
            claimed = HealthEvent.objects.filter(pk=event.pk, handled_at=None)
            if claimed.update(handled_at=now, action_taken=action) != 1:
                continue
            acted += _act(event, rules.get(event.code), action, now)
    return acted


def forget_old(now: datetime) -> int:
    """Forget handled events that are older than the setting keeps, a bounded part at a time; how many."""
    before = now - timedelta(days=settings.GPUPOOL_HEALTH_EVENT_DAYS)
    old = HealthEvent.objects.filter(at__lt=before, handled_at__isnull=False).order_by("at").values_list("pk", flat=True)
    return HealthEvent.objects.filter(pk__in=list(old[:FORGOTTEN_AT_ONCE])).delete()[0]


def _wanted(event: HealthEvent, rule: HealthRule | None) -> str:
    """What the rule says, once the event came often enough; before that it is noted."""
    if rule is None:
        return Action.NOTE
    if event.code == breaker.CODE:
        return rule.action  # that event is made of as many as the rule says
    since = event.at - timedelta(seconds=rule.window_seconds)
    same = HealthEvent.objects.filter(
        host=event.host_id, gpu=event.gpu_id, code=event.code, at__gt=since, at__lte=event.at
    )
    if same.count() < rule.repeats:
        return Action.NOTE
    if rule.counts == HealthRule.Counts.PEOPLE and rule.action in CLOSES:
        return rule.action if causes.different(list(same), rule.repeats) >= rule.repeats else Action.NOTE
    return rule.action


def _allowed(event: HealthEvent, action: str, now: datetime) -> bool:
    """Within the hour's limit. What programs can bring about has one of its own: it leaves room for what really breaks."""
    cheap = [breaker.CODE, strays.CODE]
    cheap += HealthRule.objects.filter(counts=HealthRule.Counts.PEOPLE).values_list("code", flat=True)
    recent = HealthEvent.objects.filter(host__pool=event.host.pool_id, handled_at__gt=now - BREAKER_WINDOW)
    recent = recent.filter(code__in=cheap) if event.code in cheap else recent.exclude(code__in=cheap)
    if action in CLOSES_HOST:
        closed = set(recent.filter(action_taken__in=CLOSES_HOST).values_list("host", flat=True)) - {event.host_id}
        hosts = Host.objects.filter(pool=event.host.pool_id).count()
        return len(closed) < max(1, hosts // HOSTS_PER_ACTION)
    out = set(recent.filter(action_taken=Action.QUARANTINE_GPU).values_list("gpu", flat=True)) - {event.gpu_id}
    gpus = Gpu.objects.filter(host__pool=event.host.pool_id, retired_at=None).count()
    return len(out) < max(1, gpus // GPUS_PER_ACTION)


def for_everybody(event: HealthEvent) -> str:
    """What of an event's detail anybody may see who sees the host. Whose process it was (the driver's log names pid and command of
    the one that was hit) is for operators."""
    if event.code == strays.CODE:
        return "a process on it belongs to no workload"
    return event.detail.partition("pid=")[0].rstrip(", ")


def in_words(code: str, meaning: str) -> str:
    """What a hardware event is, for people, with its code beside it: "GPU has fallen off the bus (xid:79)"."""
    return f"{meaning} ({code})" if meaning else code


def _act(event: HealthEvent, rule: HealthRule | None, action: str, now: datetime) -> bool:
    # It becomes the state's reason, on the host's page and in the notices of everybody whose work it touches.
    what, told = in_words(event.code, rule.meaning if rule is not None else ""), for_everybody(event)
    says_no_more = event.code == strays.CODE and rule is not None
    reason = (f"{what}: {told}" if told and not says_no_more else what)[:300]
    if event.code == breaker.CODE and action == Action.CORDON:
        return trip_host(event.host, reason=reason, now=now)  # what runs there runs
    if action == Action.CORDON:
        return cordon_for_fault(event.host, event.gpu, reason=reason, now=now)
    if action == Action.DRAIN:
        return drain_for_fault(event.host, reason=reason, now=now)
    if action == Action.QUARANTINE_GPU:
        return event.gpu is not None and quarantine_gpu(event.gpu, reason=reason, now=now)
    return False
