"""Judge the use of GPUs by two independent signals.

The first signal is the activity of the rollups: busy, idle or empty (docs/telemetry.md). The second one is
the power, the PCIe traffic and the memory activity. A utilisation of 0 with a changing power or with traffic
means that the use is unknown. Alerts about unused GPUs, and stops, need both signals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Time is measured if its activity is known for this part of it.
MIN_KNOWN_SHARE = 0.8
# A GPU was not used if it was busy in less than this part of the window.
UNUSED_BUSY_SHARE = 0.02
# The power of an idle GPU varies by a few watts. The standard deviation of a steady power is at most this.
STEADY_POWER_W = 5.0
STEADY_POWER_SHARE = 0.05  # or at most this part of the mean power
# NVML itself causes some traffic over PCIe, so little traffic is no sign of work.
QUIET_PCIE_KIB_S = 10_240
QUIET_DRAM_PERCENT = 2.0


@dataclass(frozen=True)
class UnitActivity:
    """The known activity of one unit in a window of ``window_seconds``, in seconds.

    ``read`` is the time in which its utilisation or its SM activity is known. Without these, a unit without
    a process still counts as empty.
    """

    unit: int
    window_seconds: float
    busy: float | None
    idle: float | None
    empty: float | None
    read: float | None

    @property
    def known(self) -> float:
        return sum(part for part in (self.busy, self.idle, self.empty) if part is not None)

    @property
    def is_measured(self) -> bool:
        return self.known >= self.window_seconds * MIN_KNOWN_SHARE

    @property
    def was_used(self) -> bool | None:
        """Return True if the unit was busy for more than UNUSED_BUSY_SHARE; None if that is unknown."""
        if not self.is_measured:
            return None
        return (self.busy or 0.0) > self.known * UNUSED_BUSY_SHARE


@dataclass(frozen=True)
class QuietSignal:
    """The readings of one unit in a window that are independent of its utilisation; None if unknown."""

    power_mean_w: float | None = None
    power_deviation_w: float | None = None
    pcie_kib_s: float | None = None
    dram_percent: float | None = None

    @property
    def is_quiet(self) -> bool | None:
        """Return True if no signal shows work, False if one does, and None if no signal is known."""
        known = [verdict for verdict in (self._is_power_steady(), *self._are_low()) if verdict is not None]
        return all(known) if known else None

    def _is_power_steady(self) -> bool | None:
        if self.power_mean_w is None or self.power_deviation_w is None:
            return None
        return self.power_deviation_w <= max(STEADY_POWER_W, self.power_mean_w * STEADY_POWER_SHARE)

    def _are_low(self) -> tuple[bool | None, bool | None]:
        pcie = None if self.pcie_kib_s is None else self.pcie_kib_s <= QUIET_PCIE_KIB_S
        dram = None if self.dram_percent is None else self.dram_percent <= QUIET_DRAM_PERCENT
        return pcie, dram


def unused_percent(units: Sequence[UnitActivity]) -> float | None:
    """Return the share of the known time in which no unit was busy, in per cent.

    The result is None if the activity of one of the units is not measured.
    """
    return _percent_of(units, lambda unit: unit.known - (unit.busy or 0.0))


def empty_percent(units: Sequence[UnitActivity]) -> float | None:
    """Return the share of the known time without a process, in per cent; None if it is not measured."""
    return _percent_of(units, lambda unit: unit.empty or 0.0)


def over_asked_percent(units: Sequence[UnitActivity]) -> float | None:
    """Return the share of the units that were not used, in per cent. It is 0 if none was used.

    Work that uses no unit is idle or empty, and has not asked for too many. The result is None if the
    activity of one of the units is not measured.
    """
    used = [unit.was_used for unit in units]
    if not used or None in used:
        return None
    return 100.0 * used.count(False) / len(used) if any(used) else 0.0


def is_confirmed_unused(unit: UnitActivity, signal: QuietSignal | None) -> bool:
    """Return True if a second signal confirms that the unit was not used.

    A unit without a process has two signals if its utilisation or its SM activity is known too. No other
    signal may contradict them. Every other unit needs a known signal: a process can use the GPU while its
    utilisation is 0, and the number of processes alone is one signal.
    """
    quiet = None if signal is None else signal.is_quiet
    is_empty = unit.known and (unit.empty or 0.0) >= unit.known * (1 - UNUSED_BUSY_SHARE)
    if is_empty and (unit.read or 0.0) >= unit.window_seconds * MIN_KNOWN_SHARE:
        return quiet is not False
    return quiet is True


def _percent_of(units: Sequence[UnitActivity], part: Callable[[UnitActivity], float]) -> float | None:
    if not units or not all(unit.is_measured for unit in units):
        return None
    return 100.0 * sum(map(part, units)) / sum(unit.known for unit in units)
