"""Test the rules of alerts: hysteresis, and the use of GPUs by two independent signals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from telemetry.core.alerts.judgement import AlertChange, AlertValue, alert_change
from telemetry.core.alerts.kinds import ALERT_KINDS, MAX_WINDOW_MINUTES, AlertKind
from telemetry.core.alerts.unit_use import (
    QuietSignal,
    UnitActivity,
    empty_percent,
    is_confirmed_unused,
    over_asked_percent,
    unused_percent,
)

HOT = ALERT_KINDS[AlertKind.HOT].defaults


def activity(
    busy: float | None, idle: float | None, empty: float | None, read: float | None = 600
) -> UnitActivity:
    return UnitActivity(1, 600, busy, idle, empty, read)


def test_every_kind_has_defaults_that_an_operator_could_set() -> None:
    assert set(ALERT_KINDS) == set(AlertKind)
    for definition in ALERT_KINDS.values():
        rule = definition.defaults
        assert definition.lowest <= rule.end < rule.begin <= definition.highest
        assert 1 <= rule.begin_minutes <= MAX_WINDOW_MINUTES and 1 <= rule.end_minutes <= MAX_WINDOW_MINUTES
        assert not rule.stop_work


@pytest.mark.parametrize(
    "is_open, to_begin, to_end, change",
    [
        (False, HOT.begin, HOT.begin, AlertChange.BEGINS),
        (False, HOT.begin - 0.1, HOT.begin, AlertChange.NONE),
        (False, None, None, AlertChange.NONE),
        (True, HOT.begin, HOT.begin, AlertChange.NONE),
        (True, HOT.end + 0.1, HOT.end + 0.1, AlertChange.NONE),  # between the thresholds nothing changes
        (False, HOT.end + 0.1, HOT.end + 0.1, AlertChange.NONE),
        (True, 0.0, HOT.end, AlertChange.ENDS),
        (True, 0.0, None, AlertChange.NONE),
    ],
)
def test_an_alert_begins_and_ends_at_different_values(
    is_open: bool, to_begin: float | None, to_end: float | None, change: AlertChange
) -> None:
    assert alert_change(HOT, AlertValue(to_begin, to_end), is_open=is_open) == change


def test_an_alert_ends_with_its_subject_and_with_its_rule() -> None:
    hot = AlertValue(100.0, 100.0)
    assert alert_change(HOT, None, is_open=True) == AlertChange.ENDS
    assert alert_change(replace(HOT, enabled=False), hot, is_open=True) == AlertChange.ENDS
    assert alert_change(replace(HOT, enabled=False), hot, is_open=False) == AlertChange.NONE


def test_the_use_of_work_is_unknown_if_a_fifth_of_one_gpu_is_not_measured() -> None:
    measured, gap = activity(0, 0, 600), activity(0, 0, 470)
    assert empty_percent([measured]) == 100
    assert empty_percent([measured, gap]) is unused_percent([measured, gap]) is None
    assert over_asked_percent([activity(600, 0, 0), gap]) is None
    assert unused_percent([activity(None, None, None)]) is None


def test_the_share_of_unused_gpus_counts_only_if_others_are_used() -> None:
    used, unused = activity(500, 100, 0), activity(0, 600, 0)
    assert over_asked_percent([used, unused, unused, unused]) == 75
    assert over_asked_percent([unused, unused]) == 0  # idle, and not too many
    assert unused_percent([unused, activity(0, 0, 600)]) == 100
    assert empty_percent([unused, activity(0, 0, 600)]) == 50


@pytest.mark.parametrize(
    "signal, quiet",
    [
        (QuietSignal(), None),
        (QuietSignal(power_mean_w=70, power_deviation_w=1.5), True),
        (QuietSignal(power_mean_w=70, power_deviation_w=40), False),
        (QuietSignal(pcie_kib_s=500), True),
        (QuietSignal(power_mean_w=70, power_deviation_w=1, pcie_kib_s=900_000), False),
        (QuietSignal(power_mean_w=70, power_deviation_w=1, dram_percent=30), False),
        (QuietSignal(dram_percent=0.1), True),
    ],
)
def test_changing_power_or_traffic_contradicts_a_utilisation_of_zero(
    signal: QuietSignal, quiet: bool | None
) -> None:
    assert signal.is_quiet is quiet
    idle, empty = activity(0, 600, 0), activity(0, 0, 600)
    assert is_confirmed_unused(idle, signal) is (quiet is True)
    assert is_confirmed_unused(empty, signal) is (quiet is not False)
    assert is_confirmed_unused(activity(0, 0, 600, read=None), signal) is (quiet is True)


def test_a_process_without_a_second_signal_is_not_confirmed_unused() -> None:
    assert not is_confirmed_unused(activity(0, 600, 0), None)
    assert is_confirmed_unused(activity(0, 0, 600), None)  # no process is the second signal


@pytest.mark.parametrize("read", [None, 0.0, 470.0])
def test_no_process_alone_is_not_confirmed_unused(read: float | None) -> None:
    assert not is_confirmed_unused(activity(0, 0, 600, read), None)
