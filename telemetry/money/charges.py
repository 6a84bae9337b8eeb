"""Charge GPU time: write priced lines that put each second of each GPU into exactly one bucket.

``charge_all_gpus`` charges each GPU forward from its watermark, which is stored in ``ChargedUntil``. Facts
that arrive late may change time that is already charged. Such charges are corrected by reversals and new
lines: no line is ever edited.

Concurrent runs are safe. A run claims a span of time by compare-and-swap on the watermark, and a line can be
reversed only once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q

from scheduler.cycle.gc_pause import gc_paused
from scheduler.models import Gpu
from telemetry.core.charge_model import floor_to_second
from telemetry.models import (
    ChargedUntil,
)
from telemetry.money.billing_months import billing_calendar
from telemetry.money.charge_rows import ChargeDraft, draft_charges, write_charges
from telemetry.money.charging_inputs import GpuChargingInputs, last_change_in, load_charging_inputs
from telemetry.money.settlement import settle_state_changes
from telemetry.money.settling.ended_allocations import settle_allocations
from telemetry.money.shared_idle import assign_due_cents
from telemetry.money.transfers import settle_cost_centres
from telemetry.money.usage_evidence import update_due_evidence

# Time is charged only after this delay, because reports of changes may arrive late.
REPORTING_LAG = timedelta(seconds=60)
GPUS_PER_TRANSACTION = 500
CATCH_UP_SPAN = timedelta(days=7)  # longest time that one round charges after an outage
CATCH_UP_ROUNDS = 6
# This condition excludes retired GPUs that are charged completely. Their old watermarks would otherwise limit
# the span of all GPUs of the same transaction. A complete watermark is the second of the retirement: it is
# less than one second before ``retired_at``.
_NOT_FULLY_CHARGED = Q(gpu__retired_at=None) | Q(gpu__retired_at__gte=F("until") + timedelta(seconds=1))


@dataclass
class ChargeRunResult:
    """The numbers of lines that one run wrote and reversed."""

    lines: int = 0
    corrections: int = 0


@dataclass(frozen=True, slots=True)
class _PricedBlock:
    """Priced time of several GPUs that is not claimed yet.

    A span is (GPU id, watermark, new watermark). ``drafts`` has the charges of each span by GPU id.
    ``untils`` has the watermarks, after this block, of the GPUs that are not charged up to the limit.
    """

    spans: list[tuple[int, datetime, datetime]]
    drafts: dict[int, list[ChargeDraft]]
    untils: dict[int, datetime]


def charge_all_gpus(now: datetime) -> ChargeRunResult:
    """Charge every GPU up to the last full hour or billing day, or up to its last change after that.

    ``GPUPOOL_LINE_LENGTH`` says whether hours or days count.

    Also corrects earlier charges after late facts, and updates the usage evidence of lines whose rollups have
    changed. No charge ends after ``now - REPORTING_LAG``.
    """
    done = ChargeRunResult()
    limit = floor_to_second(now - REPORTING_LAG)
    _start_charging_new_gpus(limit)
    done.corrections += settle_state_changes(now)
    whole = _start_of_line(limit)
    chunks = list(_chunks(Gpu.objects.order_by("pk").values_list("pk", flat=True), GPUS_PER_TRANSACTION))
    blocks = _priced_blocks(chunks, whole, limit)
    # A thread has a connection of its own, which does not see the caller's transaction.
    if len(chunks) > 1 and not connection.in_atomic_block:
        blocks = _one_ahead(blocks)
    with closing(blocks):
        for block in blocks:
            with gc_paused():
                done.lines += _write_block(block, now)
    done.corrections += settle_allocations(now)
    done.corrections += settle_cost_centres(now)
    update_due_evidence(now)
    with transaction.atomic():
        assign_due_cents()
    return done


def charge_past(
    gpu_ids: Collection[int], since: datetime, now: datetime, on_day: Callable[[datetime], None] | None = None
) -> int:
    """Charge the time from ``since`` to the start of each GPU's charges. Return the number of lines.

    Use this function for history that was loaded after charging began. A GPU without charges only gets a
    watermark at ``since``. The next ``charge_all_gpus`` charges such a GPU from there. ``on_day`` is called
    with the start of each charged day, newest day first.
    """
    written = 0
    begins = dict(ChargedUntil.objects.filter(gpu__in=gpu_ids).values_list("gpu_id", "since"))
    for gpu in sorted(set(gpu_ids) - set(begins)):
        ChargedUntil.objects.get_or_create(gpu_id=gpu, defaults={"since": since, "until": since})
    for until in sorted(set(begins.values())):
        ids = sorted(gpu for gpu, begin in begins.items() if begin == until)
        if since < until:
            written += _charge_backward(ids, floor_to_second(since), until, now, on_day)
    with transaction.atomic():
        assign_due_cents()
    return written


def _start_charging_new_gpus(limit: datetime) -> None:
    """Create a watermark for each GPU that has none, at the time at which the GPU was created."""
    new = (
        Gpu.objects.filter(charged=None, created_at__lt=limit).values_list("pk", "created_at").order_by("pk")
    )
    begins = ((pk, floor_to_second(created)) for pk, created in new)
    rows = [ChargedUntil(gpu_id=pk, since=begin, until=begin) for pk, begin in begins]
    ChargedUntil.objects.bulk_create(rows, ignore_conflicts=True, batch_size=2000)


def _start_of_line(moment: datetime) -> datetime:
    """Return the last full hour, or the start of the billing day: unchanged time is charged up to it."""
    if settings.GPUPOOL_LINE_LENGTH == "day":
        return billing_calendar().start_of_day(moment)
    return moment.replace(minute=0, second=0)


def _priced_blocks(
    chunks: Iterable[Sequence[int]], whole: datetime, limit: datetime
) -> Generator[_PricedBlock]:
    """Yield blocks that charge the GPUs from their watermarks, at most CATCH_UP_SPAN in one block.

    ``whole`` is the last full hour or day. ``limit`` is the time up to which charging is allowed. A block of
    the same GPUs begins where the block before it ends. If a concurrent run charges a GPU meanwhile, the
    claim of its next spans fails.
    """
    for ids in chunks:
        behind = ChargedUntil.objects.filter(_NOT_FULLY_CHARGED, gpu__in=ids, until__lt=limit)
        untils = dict(behind.values_list("gpu_id", "until"))
        for _ in range(CATCH_UP_ROUNDS):
            with gc_paused():
                block = _price_block(untils, whole, limit)
            if block is None:
                break
            yield block
            untils = block.untils


def _price_block(untils: Mapping[int, datetime], whole: datetime, limit: datetime) -> _PricedBlock | None:
    """Return the next block of GPUs with these watermarks; None if none of them can be charged."""
    if not untils:
        return None
    first = min(untils.values())
    last = min(limit, first + CATCH_UP_SPAN)
    near = {gpu: until for gpu, until in untils.items() if until < last}
    facts = load_charging_inputs(near.keys(), first, last)
    ends = {gpu: _charge_end(facts[gpu], until, min(whole, last), last) for gpu, until in near.items()}
    spans = [(gpu, near[gpu], end) for gpu, end in sorted(ends.items()) if end > near[gpu]]
    if not spans:
        return None
    after = {**untils, **{gpu: end for gpu, _, end in spans}}
    return _PricedBlock(
        spans,
        {gpu: list(draft_charges(facts[gpu], until, end)) for gpu, until, end in spans},
        {gpu: end for gpu, end in after.items() if end < limit and not _is_retired_at(facts.get(gpu), end)},
    )


def _is_retired_at(gpu: GpuChargingInputs | None, end: datetime) -> bool:
    """Return True if a GPU that is charged until ``end`` is charged completely."""
    return gpu is not None and gpu.retired_at is not None and gpu.retired_at < end + timedelta(seconds=1)


def _one_ahead(blocks: Iterator[_PricedBlock]) -> Generator[_PricedBlock]:
    """Yield the blocks. A thread reads and prices the next block while the caller writes one.

    The database computes while Python does, so that charging uses two processors.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="charging") as reader:
        try:
            following = reader.submit(next, blocks, None)
            while (block := following.result()) is not None:
                following = reader.submit(next, blocks, None)
                yield block
        finally:
            reader.submit(lambda: connection.close()).result()  # the connection of the thread


def _write_block(block: _PricedBlock, now: datetime) -> int:
    """Write the charge lines of the spans that this run claims. Return the number of lines."""
    with transaction.atomic():
        won = _claim_spans(block.spans)
        return write_charges([line for gpu in won for line in block.drafts[gpu]], now)


def _charge_end(gpu: GpuChargingInputs, until: datetime, whole: datetime, limit: datetime) -> datetime:
    """Return the time up to which to charge a GPU whose watermark is ``until``.

    The result is ``whole``, or the last change of the GPU if that is later. Whole hours or days keep the
    number of lines low. A charge up to the last change bills ended work at once. A retired GPU is charged up
    to its retirement.
    """
    if gpu.retired_at is not None and gpu.retired_at <= limit:
        return floor_to_second(gpu.retired_at)
    boundary = last_change_in(gpu, until, limit)
    return max(whole, floor_to_second(boundary)) if boundary else whole


def _claim_spans(stretches: Sequence[tuple[int, datetime, datetime]]) -> list[int]:
    """Move the watermark of each (GPU id, old time, new time). Return the ids of the GPUs that were moved.

    A watermark is moved only if it still is at the old time. Of two concurrent runs, only one moves it.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            'UPDATE telemetry_chargeduntil c SET "until" = v.new_until'
            " FROM unnest(%s::bigint[], %s::timestamptz[], %s::timestamptz[])"
            " AS v (gpu_id, old_until, new_until)"
            ' WHERE c.gpu_id = v.gpu_id AND c."until" = v.old_until RETURNING c.gpu_id',
            [list(column) for column in zip(*stretches, strict=True)],
        )
        return sorted(row[0] for row in cursor.fetchall())


def _charge_backward(
    ids: Sequence[int],
    since: datetime,
    until: datetime,
    now: datetime,
    on_day: Callable[[datetime], None] | None,
) -> int:
    """Charge ``[since, until)`` day by day, newest day first. Return the number of lines.

    Each day is one transaction. Because the newest day is first, the charged time of a GPU never has a gap.
    """
    written = 0
    end = until
    while end > since:
        start = max(since, billing_calendar().start_of_day(end - timedelta(seconds=1)))
        facts = load_charging_inputs(ids, start, end)
        with transaction.atomic():
            won = [
                gpu for gpu in ids if ChargedUntil.objects.filter(gpu=gpu, since=end).update(since=start) == 1
            ]
            drafts = [line for gpu in won for line in draft_charges(facts[gpu], start, end)]
            written += write_charges(drafts, now)
        if on_day is not None:
            on_day(start)
        end = start
    return written


def _chunks(ids: Iterable[int], size: int) -> Iterator[list[int]]:
    """Yield the ids in lists of at most ``size``."""
    chunk: list[int] = []
    for pk in ids:
        chunk.append(pk)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
