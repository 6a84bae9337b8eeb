"""Return the measured use of one charge line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from telemetry.models import Charge, ChargeEvidence, Rollup
from telemetry.rollups.due_marks import bucket_start

MEASURES = ("held_seconds", "covered_seconds", "utilisation_seconds", "utilisation_max", "energy_mj")


@dataclass(frozen=True)
class HourOfUse:
    """The use of one unit by one allocation in one hour.

    ``utilisation`` is the mean where it was measured, from 0 to 1.
    """

    start: datetime
    held_seconds: float
    covered_seconds: float
    utilisation: float | None
    utilisation_max: float | None
    energy_mj: int | None

    @property
    def coverage(self) -> float | None:
        return _share(self.covered_seconds, self.held_seconds)


@dataclass(frozen=True)
class LineUsage:
    """The measured use of a charge line.

    ``coverage`` is the measured part of the line's time, and ``utilisation`` is the mean utilisation of this
    part. Both come from the line's usage evidence. ``hours`` come from the rollups. If ``whole_hours`` is
    True, minutes are no longer stored, and the first and the last hour include time of the same run outside
    the line.
    """

    coverage: float | None
    utilisation: float | None
    hours: list[HourOfUse]
    whole_hours: bool


def line_usage(line: Charge) -> LineUsage | None:
    """Return the use of a line; None if no allocation held the GPU. Runs at most three queries."""
    if line.allocation_id is None:
        return None
    minutes = _overlapping(Rollup.Resolution.MINUTE, line)
    hours = [] if minutes else _overlapping(Rollup.Resolution.HOUR, line)
    used, covered = _stored_evidence(line)
    return LineUsage(
        coverage=_share(covered, line.slot_seconds),
        utilisation=_share(used, covered),
        hours=_by_hour(minutes or hours),
        whole_hours=bool(hours),
    )


def _stored_evidence(line: Charge) -> tuple[float | None, float | None]:
    """Return the used and the covered slot-seconds of a line. Both are negative for a reversal."""
    evidence = ChargeEvidence.objects.filter(charge=line)
    return evidence.values_list("used_slot_seconds", "covered_slot_seconds").first() or (None, None)


def _overlapping(resolution: int, line: Charge) -> list[dict[str, Any]]:
    found = Rollup.objects.within(resolution, bucket_start(line.start, resolution), line.end)
    return list(found.filter(allocation=line.allocation_id).order_by("bucket").values("bucket", *MEASURES))


def _by_hour(rows: Iterable[dict[str, Any]]) -> list[HourOfUse]:
    hours: dict[datetime, list[dict[str, Any]]] = {}
    for row in rows:
        hours.setdefault(row["bucket"].replace(minute=0), []).append(row)
    return [_hour(start, buckets) for start, buckets in hours.items()]


def _hour(start: datetime, buckets: list[dict[str, Any]]) -> HourOfUse:
    held, covered, used = (_sum(buckets, name) for name in MEASURES[:3])
    peaks = [row["utilisation_max"] for row in buckets if row["utilisation_max"] is not None]
    energy = _sum(buckets, "energy_mj")
    return HourOfUse(
        start=start,
        held_seconds=held or 0.0,
        covered_seconds=covered or 0.0,
        utilisation=_share(used, covered),
        utilisation_max=max(peaks) / 100 if peaks else None,
        energy_mj=None if energy is None else int(energy),
    )


def _sum(buckets: Iterable[dict[str, Any]], name: str) -> float | None:
    """Return the sum of a measure; None if no bucket measured it."""
    found = [row[name] for row in buckets if row[name] is not None]
    return sum(found) if found else None


def _share(part: float | None, whole: float | None) -> float | None:
    """Return ``part / whole``, from 0 to 1. Values of a reversal are negative."""
    return None if part is None or not whole else min(1.0, abs(part) / abs(whole))
