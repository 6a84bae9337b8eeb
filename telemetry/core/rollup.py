"""Sum the samples of one unit (a GPU or a MIG slice) by time bucket and allocation.

Averages are not stored: code that reads the rollups derives them from the sums. A sample covers the time
since the previous sample, at most ``SAMPLE_REACH_SECONDS``. Time that no sample covers is unknown: it counts
as neither busy nor idle.

Each term of a sum is rounded to a millionth, so that sums are exact in any order. ``rollup_arrays.py`` gives
the same sums for many units at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from telemetry.core.reading_bounds import GENERAL_POWER_LIMIT_W, max_energy_mj

# A sample covers at most this time before its timestamp. With one sample every ten seconds, two lost samples
# in a row leave no gap.
SAMPLE_REACH_SECONDS = 30.0
# docs/telemetry.md defines these limits in the section "Rollups".
BUSY_PERCENT = 5.0  # a unit is busy from this utilisation on
LOW_SM_PERCENT = 20.0  # busy time is inefficient below this SM activity and below LOW_TENSOR_PERCENT
LOW_TENSOR_PERCENT = 10.0
HOUR = 3600
DAY = 86_400


@dataclass(frozen=True, slots=True)
class UsageReading:
    """The fields of a sample that rollups need. ``ts`` is in seconds since the epoch.

    A field is None if its value is unknown.
    """

    ts: float
    utilisation: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    memory_used_mib: int | None = None
    energy_mj: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class UnitHold:
    """The interval ``[start, end)`` in which ``allocation`` held the unit, in seconds since the epoch.

    ``end`` is infinity while the unit is held.
    """

    allocation: int
    start: float
    end: float


@dataclass(slots=True)
class UsageSums:
    """The usage of one unit by one allocation in one time bucket. A field is None if it was not measured.

    Percentages are summed as fractions times seconds. Example: a utilisation of 50 % for 10 seconds adds 5 to
    ``utilisation_seconds``. ``inefficient_seconds`` and ``sm_unmeasured_seconds`` are parts of
    ``busy_seconds``. ``energy_faults`` is the number of intervals whose energy is unknown because of the
    counter.

    ``utilisation_unknown_seconds`` and ``sm_unknown_seconds`` are parts of ``covered_seconds``: a mean is
    divided by the rest of it. They are None if there is no such time, so that they take no space.
    """

    held_seconds: float = 0.0
    covered_seconds: float = 0.0
    samples: int = 0
    utilisation_seconds: float | None = None
    utilisation_max: float | None = None
    busy_seconds: float | None = None
    inefficient_seconds: float | None = None
    sm_unmeasured_seconds: float | None = None
    idle_seconds: float | None = None
    empty_seconds: float | None = None
    sm_active_seconds: float | None = None
    tensor_active_seconds: float | None = None
    memory_used_max_mib: int | None = None
    energy_mj: int | None = None
    energy_faults: int | None = None
    utilisation_unknown_seconds: float | None = None
    sm_unknown_seconds: float | None = None

    @property
    def utilisation_known_seconds(self) -> float:
        """Return the covered time whose utilisation is known."""
        return self.covered_seconds - (self.utilisation_unknown_seconds or 0.0)

    @property
    def sm_known_seconds(self) -> float:
        """Return the covered time whose SM activity is known.

        Tensor activity comes from the same source, so it is known at the same times.
        """
        return self.covered_seconds - (self.sm_unknown_seconds or 0.0)


MAX_FIELDS = ("utilisation_max", "memory_used_max_mib")
SUM_FIELDS = tuple(entry.name for entry in fields(UsageSums) if entry.name not in MAX_FIELDS)
# The sums that are proportional to the covered time.
SCALED_FIELDS = tuple(name for name in SUM_FIELDS if name not in ("held_seconds", "samples", "energy_faults"))


def roll_up_readings(
    readings: Sequence[UsageReading],
    held: Sequence[UnitHold],
    start: float,
    end: float,
    *,
    power_limit_w: float = GENERAL_POWER_LIMIT_W,
) -> dict[int | None, UsageSums]:
    """Return the usage in the time bucket ``[start, end)`` by allocation id.

    The key None stands for the time in which nobody held the unit. ``held`` is sorted by time and does not
    overlap.

    ``readings`` are sorted by ``ts``. They include the readings up to SAMPLE_REACH_SECONDS before and after
    the bucket. A reading just after the end is needed, because it covers the last seconds of the bucket.
    ``power_limit_w`` is the power limit of the unit's GPU. It limits the energy between two readings.
    """
    uses: dict[int | None, UsageSums] = {}
    for owner, low, high in _split_by_holder(held, start, end):
        uses.setdefault(owner, UsageSums()).held_seconds += _micros(low, high) / 1e6
    before: UsageReading | None = None
    for reading in readings:
        since = (
            reading.ts - SAMPLE_REACH_SECONDS
            if before is None
            else max(before.ts, reading.ts - SAMPLE_REACH_SECONDS)
        )
        low, high = max(since, start), min(reading.ts, end)
        energy, is_fault = _energy_since(before, reading, power_limit_w)
        if low < high:
            for owner, first, last in _split_by_holder(held, low, high):
                micros = _micros(first, last)
                _add_reading(uses[owner], reading, micros)
                # A reading may cover time of two buckets or of two allocations. Split its energy in
                # proportion to the time.
                _add_energy(uses[owner], energy, micros, _micros(since, reading.ts))
        if start <= reading.ts < end:
            use = uses[_holder_at(held, reading.ts)]
            use.samples += 1
            if is_fault:
                use.energy_faults = (use.energy_faults or 0) + 1
        before = reading
    return uses


def merge_usage(parts: Iterable[UsageSums]) -> UsageSums:
    """Return the usage of several time buckets of one unit and allocation as one sum.

    Example: the usage of an hour from the usage of its minutes.
    """
    total = UsageSums()
    for part in parts:
        for name in SUM_FIELDS:
            setattr(total, name, _add_known(getattr(total, name), getattr(part, name)))
        for name in MAX_FIELDS:
            known = [value for value in (getattr(total, name), getattr(part, name)) if value is not None]
            setattr(total, name, max(known) if known else None)
    return total


def merge_finer_usage(
    parts: Mapping[int | None, Sequence[UsageSums]], held: Sequence[UnitHold], start: float, end: float
) -> dict[int | None, UsageSums]:
    """Return the usage in ``[start, end)`` by allocation id, merged from shorter buckets.

    ``held_seconds`` is the time that the allocation held the unit in ``[start, end)``, even if no sample
    covers it. The key None is in the result only if ``parts`` has it. ``held`` is sorted by time and does not
    overlap.

    If the end of a hold became known late, ``parts`` may include time after this end. The sums are then
    reduced in proportion, so that an allocation's covered time is never longer than its held time.
    ``merged_arrays.py`` gives the same sums for many units at once.
    """
    held_micros: dict[int | None, int] = {}
    for owner, low, high in _split_by_holder(held, start, end):
        if owner is not None or None in parts:
            held_micros[owner] = held_micros.get(owner, 0) + _micros(low, high)
    uses: dict[int | None, UsageSums] = {}
    for owner, micros in held_micros.items():
        use = merge_usage(parts.get(owner, ()))
        uses[owner] = replace(_limit_coverage(use, micros), held_seconds=micros / 1e6)
    return uses


COVERAGE_TOLERANCE_SECONDS = 0.001  # sums of floats may differ by less than this


def would_lose_coverage(before: float, after: float) -> bool:
    """Return True if covered seconds would fall from ``before`` to ``after``.

    Late samples only add coverage. If the coverage would fall, some of the source rows were deleted.
    """
    return after < before - COVERAGE_TOLERANCE_SECONDS


def energy_between(before: int, after: int, seconds: float, power_limit_w: float) -> int | None:
    """Return the millijoules used between two readings of the energy counter, ``seconds`` apart.

    The result is None if the counter fell, because it restarts when the driver is loaded or the GPU is reset.
    It is also None if the counter grew by more than a GPU with this power limit can use.
    """
    used = after - before
    return used if 0 <= used <= max_energy_mj(power_limit_w, seconds) else None


def _split_by_holder(
    held: Sequence[UnitHold], start: float, end: float
) -> list[tuple[int | None, float, float]]:
    """Return the intervals (allocation id, start, end) into which the holds divide ``[start, end)``.

    The allocation id is None for an interval in which nobody held the unit.
    """
    parts: list[tuple[int | None, float, float]] = []
    at = start
    for hold in held:
        low, high = max(hold.start, at), min(hold.end, end)
        if low >= high:
            continue
        if at < low:
            parts.append((None, at, low))
        parts.append((hold.allocation, low, high))
        at = high
    if at < end:
        parts.append((None, at, end))
    return parts


def _limit_coverage(use: UsageSums, micros: int) -> UsageSums:
    """Return ``use`` with its measures scaled down so that at most ``micros`` microseconds are covered."""
    covered = _micros(0.0, use.covered_seconds)
    if covered <= micros:
        return use
    scaled = replace(use)
    for name in SCALED_FIELDS:
        value = getattr(use, name)
        if value is not None:
            unit = 1.0 if name == "energy_mj" else 1e6  # seconds are rounded to a millionth, as in each sum
            part = round(round(value * unit) * float(micros) / covered)
            setattr(scaled, name, part if name == "energy_mj" else part / 1e6)
    return scaled


def _holder_at(held: Sequence[UnitHold], moment: float) -> int | None:
    return next((hold.allocation for hold in held if hold.start <= moment < hold.end), None)


def _micros(start: float, end: float) -> int:
    return round((end - start) * 1e6)


def _add_reading(use: UsageSums, reading: UsageReading, micros: int) -> None:
    """Add the time that ``reading`` covers, in microseconds, to the sums.

    If the activity is known, the time counts in exactly one of busy, idle and empty.
    """
    seconds = micros / 1e6
    use.covered_seconds += seconds
    kind = _activity_kind(reading)
    if kind is not None:
        for name in ("busy_seconds", "idle_seconds", "empty_seconds"):
            setattr(use, name, (getattr(use, name) or 0.0) + (seconds if name == kind else 0.0))
    if kind == "busy_seconds":
        judged = _efficiency_kind(reading)
        for name in ("inefficient_seconds", "sm_unmeasured_seconds"):
            setattr(use, name, (getattr(use, name) or 0.0) + (seconds if name == judged else 0.0))
    _add_unknown(use, reading, seconds)
    _add_weighted(use, "utilisation_seconds", reading.utilisation, micros)
    _add_weighted(use, "sm_active_seconds", reading.sm_active, micros)
    _add_weighted(use, "tensor_active_seconds", reading.tensor_active, micros)
    if reading.utilisation is not None:
        use.utilisation_max = max(use.utilisation_max or 0.0, reading.utilisation)
    if reading.memory_used_mib is not None:
        use.memory_used_max_mib = max(use.memory_used_max_mib or 0, reading.memory_used_mib)


def _add_unknown(use: UsageSums, reading: UsageReading, seconds: float) -> None:
    if reading.utilisation is None:
        use.utilisation_unknown_seconds = (use.utilisation_unknown_seconds or 0.0) + seconds
    if reading.sm_active is None:
        use.sm_unknown_seconds = (use.sm_unknown_seconds or 0.0) + seconds


def _activity_kind(reading: UsageReading) -> str | None:
    """Return the name of the sum to which the reading's time is added; None if the activity is unknown."""
    # NVML reports no utilisation for MIG slices: use SM activity.
    activity = reading.utilisation if reading.utilisation is not None else reading.sm_active
    if activity is not None and activity >= BUSY_PERCENT:
        return "busy_seconds"
    if reading.processes == 0:
        return "empty_seconds"
    return None if activity is None else "idle_seconds"


def _efficiency_kind(reading: UsageReading) -> str | None:
    """Return the name of the sum to which busy time is added; None if the time is productive.

    Much tensor activity makes time productive, even if SM activity is low or unknown.
    """
    if reading.tensor_active is not None and reading.tensor_active >= LOW_TENSOR_PERCENT:
        return None
    if reading.sm_active is None:
        return "sm_unmeasured_seconds"
    return "inefficient_seconds" if reading.sm_active < LOW_SM_PERCENT else None


def _energy_since(
    before: UsageReading | None, reading: UsageReading, power_limit_w: float
) -> tuple[int | None, bool]:
    """Return the millijoules since the previous reading, and True if the counter makes them unknown."""
    if before is None or before.energy_mj is None or reading.energy_mj is None:
        return None, False
    seconds = _micros(before.ts, reading.ts) / 1e6
    if seconds > SAMPLE_REACH_SECONDS:
        return None, False
    used = energy_between(before.energy_mj, reading.energy_mj, seconds, power_limit_w)
    return used, used is None


def _add_energy(use: UsageSums, energy_mj: int | None, micros: int, of_micros: int) -> None:
    if energy_mj is not None:
        use.energy_mj = (use.energy_mj or 0) + round(energy_mj * float(micros) / of_micros)


def _add_weighted(use: UsageSums, name: str, percent: float | None, micros: int) -> None:
    if percent is not None:
        setattr(use, name, (getattr(use, name) or 0.0) + round(percent * micros / 100.0) / 1e6)


def _add_known(one: float | None, other: float | None) -> float | None:
    if one is None:
        return other
    return one if other is None else one + other
