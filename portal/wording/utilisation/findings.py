"""Say in one sentence what each chart of the utilisation page shows.

There is no sentence if too little was measured, because the figures would then depend on chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from portal.wording.chargeback.overview_texts import Finding
from portal.wording.formatting import duration, with_count
from telemetry.core.capacity.demand_forecast import HORIZON_DAYS, MIN_KNOWN_DAYS, Backtest
from telemetry.reads.usage_by_group import GroupUsage
from telemetry.reads.utilisation.waste import WASTE_STEPS, WasteRow
from telemetry.reads.wait_times import GroupWaitTimes
from telemetry.reads.waterfall import UsageWaterfall, WorkKey

MIN_GPU_HOURS = 20
MIN_STARTS = 20
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
STEP_SUBJECTS = {
    "empty": "Empty time",
    "idle": "Idle time",
    "inefficient": "Inefficient time",
    "reserved_unused": "Reserved and unused time",
}
FREE_STEPS = ("unallocated", "dedicated_unused")


def waterfall_finding(fall: UsageWaterfall, before: UsageWaterfall | None = None) -> Finding | None:
    """Return the shares of the capacity that were held and wasted, and that nobody held.

    If ``before`` is the waterfall of an earlier period, the sentence also names the kind of waste that
    changed most.
    """
    if fall.gpu_hours < MIN_GPU_HOURS:
        return None
    share = {step.key: step.share for step in fall.steps}
    wasted = sum(share.get(key, 0.0) for key in WASTE_STEPS)
    free = sum(share.get(key, 0.0) for key in FREE_STEPS)
    main = f"{_percent(wasted)} of capacity was held and wasted, {_percent(free)} nobody took."
    if before is None or before.gpu_hours < MIN_GPU_HOURS:
        return Finding(main)
    earlier = {step.key: step.share for step in before.steps}
    changes = {key: share.get(key, 0.0) - earlier.get(key, 0.0) for key in WASTE_STEPS}
    most = max(WASTE_STEPS, key=lambda key: abs(changes[key]))
    if abs(changes[most]) < 0.005:
        return Finding(main, "No kind of waste changed by half a point.")
    verb = "grew" if changes[most] > 0 else "fell"
    return Finding(
        main, f"{STEP_SUBJECTS[most]} {verb} most, by {abs(changes[most]) * 100:.1f} points of capacity."
    )


def held_finding(held: Sequence[float], owned: float, hours: float) -> Finding | None:
    """Return the highest and the mean number of held GPUs. ``held`` has one value per step."""
    if not held or sum(held) * hours < MIN_GPU_HOURS:
        return None
    most, mean = max(held), sum(held) / len(held)
    return Finding(f"At most {most:,.0f} of {owned:,.0f} GPUs were held, {mean:,.0f} on average.")


def use_by_finding(groups: Sequence[GroupUsage]) -> Finding | None:
    """Return the group that held the most GPU-hours, and the utilisation of its GPUs."""
    held = sum(group.held for group in groups)
    if held < MIN_GPU_HOURS:
        return None
    first = groups[0]
    main = f"{first.name or 'None'} held most: {_percent(first.held / held)} of all held GPU-hours."
    known = first.utilisation is not None
    return Finding(main, f"Their mean utilisation was {_percent(first.utilisation or 0.0)}." if known else "")


def busy_finding(rows: Sequence[WasteRow], names: Mapping[WorkKey, str]) -> Finding | None:
    """Return the workload with the least SM activity for its utilisation.

    Only named workloads with a utilisation of 50 % or more count.
    """
    known = [
        (row, row.busy, row.sm_active)
        for row in rows
        if row.work in names and row.busy is not None and row.busy >= 0.5 and row.sm_active is not None
    ]
    if not known or sum(row.held_hours for row in rows) < MIN_GPU_HOURS:
        return None
    row, busy, active = min(known, key=lambda each: each[2] / each[1])
    main = (
        f"{names[row.work]} has a utilisation of {_percent(busy)} and an SM activity of {_percent(active)}."
    )
    return Finding(main)


def now_finding(readings: Sequence[float | None]) -> Finding | None:
    """Return how many GPUs are busy now. ``readings`` are per cent."""
    known = [reading for reading in readings if reading is not None]
    if not known:
        return None
    busy = sum(reading >= 5 for reading in known)
    more = f"{len(readings) - len(known)} report nothing." if len(known) < len(readings) else ""
    return Finding(f"{busy:,} of {len(readings):,} GPUs are busy.", more)


def rhythm_finding(grid: Sequence[Sequence[float | None]]) -> Finding | None:
    """Return the weekday and the hour with the highest utilisation. ``grid`` has a row for each weekday."""
    known = [
        (share, day, hour)
        for day, row in enumerate(grid)
        for hour, share in enumerate(row)
        if share is not None
    ]
    if len(known) < MIN_STARTS:
        return None
    share, day, hour = max(known, key=lambda cell: cell[0])
    return Finding(f"GPUs work most on {WEEKDAYS[day]} around {hour:02d}:00: utilisation {_percent(share)}.")


def demand_finding(grid: Sequence[Sequence[float | None]], capacity: float) -> Finding | None:
    """Return when most GPUs are wanted, and how many hours of the week are above the capacity."""
    known = [
        (value, day, hour)
        for day, row in enumerate(grid)
        for hour, value in enumerate(row)
        if value is not None
    ]
    if len(known) < MIN_STARTS:
        return None
    most, day, hour = max(known, key=lambda cell: cell[0])
    over = sum(value > capacity for value, _, _ in known)
    main = f"{WEEKDAYS[day]} around {hour:02d}:00 wants most: {most:,.0f} of {capacity:,.0f} GPUs."
    return Finding(main, f"{over} of {len(known)} hours of the week are over {capacity:,.0f}.")


def forecast_finding(last: float | None, expected: float | None, gpus: int, days_over: int) -> Finding | None:
    """Return the mean GPUs of the next 4 weeks against the last 4, and the days above the present GPUs."""
    if expected is None or last is None:
        return Finding(
            "Too few days are known for a forecast.", f"It needs {MIN_KNOWN_DAYS} days with demand."
        )
    change = "as in the last 4"
    if abs(expected - last) >= 0.02 * max(last, 1.0):
        verb = "more" if expected > last else "less"
        change = f"{abs(expected - last):,.1f} {verb} than in the last 4"
    main = f"The next 4 weeks want {expected:,.1f} GPUs on average, {change}."
    return Finding(main, f"{days_over} of {HORIZON_DAYS} days are above the present {gpus:,} GPUs.")


def backtest_text(tested: Backtest) -> str:
    """Return how well the forecast of past weeks was, in words."""
    if tested.error_share is None or tested.mase is None:
        return "not tested on past weeks yet"
    weeks = with_count(tested.origins, "past forecast")
    return (
        f"{weeks} of 4 weeks {'was' if tested.origins == 1 else 'were'} {_percent(tested.error_share)} wrong "
        f"on a day, {tested.mase:.2f} times the error of the same day a week before"
    )


def saving_finding(gpus: float, per_month: str) -> Finding | None:
    """Return the number of GPUs that the teams save because they share.

    ``per_month`` is the price of these GPUs in a month; "" if unknown.
    """
    if gpus < 0.05:
        return None
    price = f", {per_month} a month" if per_month else ""
    return Finding(f"Sharing saves {gpus:,.1f} GPUs{price}:", "the teams peak at different hours.")


def waits_finding(rows: Sequence[GroupWaitTimes]) -> Finding | None:
    """Return the number of GPUs with the longest waiting time, and the waiting times of the most frequent
    number of GPUs.
    """
    if sum(row.started for row in rows) < MIN_STARTS:
        return None
    started = [row for row in rows if row.p50 is not None and row.p95 is not None]
    often = max(started, key=lambda row: row.started)
    slow = max(started, key=lambda row: row.p95 or 0.0)
    more = (
        f"With {_gpus(often.name)}, half start within {duration(often.p50)},"
        f" 19 of 20 within {duration(often.p95)}."
    )
    return Finding(f"Requests of {_gpus(slow.name)} wait longest, up to {duration(slow.longest)}.", more)


def _gpus(count: str) -> str:
    return f"{count} GPU" if count == "1" else f"{count} GPUs"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def waste_finding(wasted_hours: Sequence[float], kind: str) -> Finding | None:
    """Return the share of the waste that the first rows of a list cause.

    ``kind`` names the rows in the plural.
    """
    total = sum(wasted_hours)
    if total < MIN_GPU_HOURS or len(wasted_hours) < 2:
        return None
    first = min(5, max(1, len(wasted_hours) // 2))
    share = sum(wasted_hours[:first]) / total
    verb = "makes" if first == 1 else "make"
    return Finding(f"{first} of {len(wasted_hours):,} {kind} {verb} {_percent(share)} of the waste.")


def waste_reason(row: WasteRow, units: int) -> str:
    """Return the main reason why the GPU-hours of a row were wasted.

    ``units`` is the number of requested GPUs, or 0.
    """
    hours, step = row.hours[row.main_step], row.main_step
    if step == "reserved_unused":
        return f"reserved {hours:,.0f} h, and the work did not come"
    if step in ("empty", "idle") and units > 1 and (used := row.used_units(units)) < units:
        return f"asked {units}, used {used}"
    if step == "empty":
        return f"no process for {hours:,.0f} of {row.held_hours:,.0f} h"
    if step == "idle":
        return f"idle for {hours:,.0f} of {row.held_hours:,.0f} h"
    if row.busy is None or row.sm_active is None:
        return f"little SM work for {hours:,.0f} of {row.held_hours:,.0f} h"
    return f"utilisation {_percent(row.busy)}, SM {_percent(row.sm_active)}: little work while busy"


WASTE_STEPS_TO_TAKE = {
    "reserved_unused": "Cancel the reservation, or start the work in it.",
    "empty": "Ask for fewer GPUs next time, or end the work when it is done.",
    "idle": "Stop the notebook or the job while nothing runs.",
    "inefficient": "Use more loader processes or larger batches, or a smaller GPU.",
}


def waste_mail(name: str, row: WasteRow, units: int, window: str) -> str:
    """Return the draft of a message to the owner of a row."""
    return (
        f"{name}, {window}: {row.wasted_hours:,.0f} GPU-hours were held and not used"
        f" ({waste_reason(row, units)}). {WASTE_STEPS_TO_TAKE[row.main_step]}"
    )


def fleet_finding(rows: Sequence[tuple[str, Sequence[float | None]]], size: str) -> Finding | None:
    """Return the names with the highest and the lowest mean. ``rows`` are (name, utilisation in per cent)."""
    means = []
    for name, busy in rows:
        known = [value for value in busy if value is not None]
        if known:
            means.append((sum(known) / len(known), name))
    if not means:
        return None
    (low, least), (high, most) = min(means), max(means)
    if len(means) < 2:
        return Finding(f"The utilisation of {most} was {high:.0f} %.", f"{size}.")
    main = f"{most} had the highest utilisation, {high:.0f} %, and {least} the lowest, {low:.0f} %."
    return Finding(main, f"{size}.")


def gpu_finding(busy: Sequence[float | None], runs: int, model: str) -> Finding | None:
    """Return the utilisation of a GPU, and how many runs held it. ``busy`` has per cent of each hour."""
    known = [value for value in busy if value is not None]
    if not known:
        return None
    held = "1 run" if runs == 1 else f"{runs:,} runs"
    return Finding(f"{held} held this {model}.", f"Its mean utilisation was {sum(known) / len(known):.0f} %.")


def samples_finding(label: str, unit: str, values: Sequence[float]) -> Finding | None:
    """Return the range of the samples that are drawn."""
    if not values:
        return None
    return Finding(f"{label}: {min(values):,.0f} to {max(values):,.0f} {unit}.")
