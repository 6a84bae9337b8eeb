"""Turn the answer of a dcgm-exporter into the readings of the units and GPUs of one host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from telemetry.core.reading_bounds import reading_bounds
from telemetry.dcgm.exposition import MetricLine, parse_metrics
from telemetry.dcgm.fields import (
    READ_FIELDS,
    SAMPLE_FIELDS,
    SLOW_FIELDS,
    FieldSource,
    known_value,
    reading_of,
)
from telemetry.dcgm.host_gpus import ScrapedGpu, ScrapedUnit

# dcgm-exporter names the label of the GPU's uuid "UUID"; with old names "uuid"; for NVLinks "gpu_uuid".
_UUID_LABELS = ("UUID", "uuid", "gpu_uuid")
_INSTANCE_LABELS = ("GPU_I_ID", "gpu_i_id")
_PROFILE_LABELS = ("GPU_I_PROFILE", "gpu_i_profile")
# Lines with one of these labels describe a part of a GPU or of the host, not a GPU.
_PART_LABELS = frozenset({"nvlink", "nvswitch", "cpu", "cpucore", "pid"})
INTEGER_READINGS = frozenset(
    {
        "memory_used_mib",
        "sm_clock_mhz",
        "throttle_reasons",
        "pcie_rx_kib",
        "pcie_tx_kib",
        "nvlink_kib",
        "memory_clock_mhz",
        "video_clock_mhz",
    }
)
MAX_SLOW_VALUE = 2.0**62


@dataclass
class ScrapedValues:
    """The values of one answer.

    ``units`` are readings by unit id, with None for unknown. ``slow`` are counters and flags by GPU id.
    ``impossible`` has (reading, value) of each value out of bounds. Such a value is stored as unknown.
    """

    units: dict[int, dict[str, float | None]] = field(default_factory=dict)
    slow: dict[int, dict[str, int]] = field(default_factory=dict)
    fields: set[str] = field(default_factory=set)
    unreadable_lines: int = 0
    refused: set[tuple[str, str]] = field(default_factory=set)  # (uuid, MIG instance) not of this host
    impossible: list[tuple[str, float]] = field(default_factory=list)


def read_values(text: str, gpus: Mapping[str, ScrapedGpu]) -> ScrapedValues:
    """Return the values of the GPUs of one host in the answer of its dcgm-exporter.

    A GPU or MIG instance that is not in ``gpus`` is refused. A line without a GPU counts as unreadable.
    """
    lines, unreadable = parse_metrics(text)
    done = ScrapedValues(unreadable_lines=unreadable)
    of_units: dict[int, tuple[ScrapedUnit, dict[str, float]]] = {}
    of_gpus: dict[int, dict[str, float]] = {}
    for line in lines:
        if line.name not in READ_FIELDS or not _PART_LABELS.isdisjoint(line.labels):
            continue
        uuid = _first_label(line, _UUID_LABELS)
        instance = _first_label(line, _INSTANCE_LABELS)
        if not uuid:
            done.unreadable_lines += 1
            continue
        gpu, unit = _find(gpus, uuid, instance, _first_label(line, _PROFILE_LABELS))
        if gpu is None or (instance and unit is None):
            done.refused.add((uuid, instance))
            continue
        value = known_value(line.value)
        if value is None:
            continue
        done.fields.add(line.name)
        of_gpus.setdefault(gpu.id, {})[line.name] = value
        if unit is not None:
            of_units.setdefault(unit.id, (unit, {}))[1][line.name] = value
    for unit, values in of_units.values():
        done.units[unit.id] = _unit_readings(unit, values, done)
    for gpu_id, values in of_gpus.items():
        done.slow[gpu_id] = _slow_readings(values, done)
    return done


def _first_label(line: MetricLine, names: tuple[str, ...]) -> str:
    return next((line.labels[name] for name in names if line.labels.get(name)), "")


def _find(
    gpus: Mapping[str, ScrapedGpu], uuid: str, instance: str, profile: str
) -> tuple[ScrapedGpu | None, ScrapedUnit | None]:
    """Return the GPU and the unit of a line. A line of a split GPU without an instance has no unit."""
    gpu = gpus.get(uuid)
    if gpu is not None:
        return gpu, gpu.unit_of(instance, profile)
    for each in gpus.values():  # the uuid may be that of a MIG instance
        for unit in each.units:
            if unit.uuid == uuid:
                return each, unit
    return None, None


def _unit_readings(
    unit: ScrapedUnit, values: Mapping[str, float], done: ScrapedValues
) -> dict[str, float | None]:
    """Return the readings of one unit. Values out of bounds are unknown, and added to ``done``.

    dcgm-exporter repeats the values of a whole GPU, such as its power, at each of its MIG instances. They are
    not values of the instance.
    """
    bounds = reading_bounds(unit.limits)
    readings: dict[str, float | None] = {}
    for name, alternatives in SAMPLE_FIELDS.items():
        allowed = [source for source in alternatives if source.per_instance or not unit.profile]
        value = _first_reading(allowed, values)
        if value is not None and name in INTEGER_READINGS:
            value = float(round(value))
        if value is not None and not 0 <= value <= bounds[name]:
            done.impossible.append((name, value))
            value = None
        readings[name] = value
    return readings


def _first_reading(allowed: list[FieldSource], values: Mapping[str, float]) -> float | None:
    known = (reading_of(source, values) for source in allowed)
    return next((value for value in known if value is not None), None)


def _slow_readings(values: Mapping[str, float], done: ScrapedValues) -> dict[str, int]:
    readings = {}
    for name, source in SLOW_FIELDS.items():
        value = reading_of(source, values)
        if value is None:
            continue
        if 0 <= value <= MAX_SLOW_VALUE:
            readings[name] = round(value)
        else:
            done.impossible.append((name, value))
    return readings
