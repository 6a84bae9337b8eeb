"""Derives hardware events from two successive readings of a GPU's conditions, with pure functions.

Each change for the worse is one event. Its id is a hash of the boot id, the GPU, the event code and a value
of the change, such as a counter. If a restarted NVML process or agent reports an event again, the id is the
same, and the server ignores the repeated event.
"""

from __future__ import annotations

import uuid
from typing import Any

from agent.gpu.reader import HardwareEvent

EVENT_ID_NAMESPACE = uuid.UUID("1f0e7d1b-95c1-4c50-9f0e-3d4f0a7c6b11")
# Values of nvmlDeviceGpuRecoveryAction_t and the names that event codes use for them.
RECOVERY_ACTIONS = {
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
# The bits of the clock event reasons (nvml.h) that are set while the hardware slows its clocks down.
THROTTLE_REASONS = {
    0x08: ("throttle:hardware", "the hardware slowed its clocks to half or less"),
    0x40: ("throttle:thermal", "the hardware slowed its clocks for heat"),
    0x80: ("throttle:power_brake", "its server asked it to draw less power"),
}
Condition = dict[str, Any]


def worsened_conditions(
    gpu: str, before: Condition | None, after: Condition, *, boot: str, now: float
) -> list[HardwareEvent]:
    """Return an event for each condition that became worse.

    ``before`` is None at the first reading. Counters then cause no event, because they also count errors
    that happened before this agent started.
    """
    found: list[tuple[str, str, object]] = []  # event code, detail, value of the change for the event's id
    earlier = before or {}
    if after.get("lost"):
        if not earlier.get("lost"):
            detail = f"the driver does not reach it ({after['why']})" if after.get("why") else ""
            found.append(("nvml:lost", detail or "it fell off the bus: the driver does not reach it", ""))
        return _hardware_events(gpu, found, boot, now)
    action = after.get("recovery")
    if action in RECOVERY_ACTIONS and action != earlier.get("recovery"):
        found.append(
            (
                f"recovery:{RECOVERY_ACTIONS[action]}",
                "the driver recommends this action",
                action,
            )
        )
    for name, code in (("remap_pending", "remap:pending"), ("remap_failed", "remap:failed")):
        if after.get(name) and not earlier.get(name):
            found.append((code, "", after.get("remapped")))
    found += _counter_events(earlier, after)
    found += _throttle_events(earlier.get("clock_reasons"), after.get("clock_reasons"), now)
    found += _nvlink_events(earlier.get("links") or {}, after.get("links") or {}, now)
    return _hardware_events(gpu, found, boot, now)


def _counter_events(before: Condition, after: Condition) -> list[tuple[str, str, object]]:
    found: list[tuple[str, str, object]] = []
    for name, code, what in (
        ("uncorrectable", "ecc:uncorrectable", "memory errors since the driver was loaded"),
        ("remapped", "remap:uncorrectable", "rows remapped after uncorrectable errors"),
        ("link_errors", "nvlink:errors", "replays, recoveries and CRC errors of its links"),
    ):
        count, known = after.get(name), before.get(name)
        if count is not None and known is not None and count > known:
            found.append((code, f"{count} {what}, {count - known} of them new", count))
    return found


def _throttle_events(before: int | None, after: int | None, now: float) -> list[tuple[str, str, object]]:
    new = (after or 0) & ~(before or 0)
    reasons = [THROTTLE_REASONS[bit] for bit in sorted(THROTTLE_REASONS) if new & bit]
    # Heat and the power brake also set the bit of "throttle:hardware". Without this filter, one slowdown
    # would produce two events.
    specific = [reason for reason in reasons if reason[0] != "throttle:hardware"]
    return [(code, detail, now) for code, detail in specific or reasons]


def _nvlink_events(
    before: dict[str, int], after: dict[str, int], now: float
) -> list[tuple[str, str, object]]:
    down = sorted(int(link) for link, state in before.items() if state and after.get(link) == 0)
    return (
        [("nvlink:down", f"link{'s' if len(down) > 1 else ''} {', '.join(map(str, down))}", now)]
        if down
        else []
    )


def _hardware_events(
    gpu: str, found: list[tuple[str, str, object]], boot: str, now: float
) -> list[HardwareEvent]:
    return [
        HardwareEvent(
            uuid.uuid5(EVENT_ID_NAMESPACE, f"{boot}/{gpu}/{code}/{which}").hex, gpu, "nvml", code, now, detail
        )
        for code, detail, which in found
    ]
