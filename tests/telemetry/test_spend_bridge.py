"""Test the bridge between the charges of two periods, with the example of docs/money.md."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.core.spending.spend_bridge import STEP_KINDS, BridgeStep, SpendBridge, SpendPart, spend_bridge

HOUR = 840 * 3600
CENT = Decimal("0.01")


def part(project: int | None, hours: float, charged: str, model: str = "H100", **fields: str) -> SpendPart:
    return SpendPart(project, model, model, int(hours * HOUR), Decimal(charged), **fields)  # type: ignore[arg-type]


def steps(bridge: SpendBridge) -> dict[str, Decimal]:
    return {step.kind: step.amount for step in bridge.steps}


def step(bridge: SpendBridge, kind: str) -> BridgeStep:
    return next(each for each in bridge.steps if each.kind == kind)


def test_a_new_price_for_the_same_hours_is_a_price_step() -> None:
    bridge = spend_bridge([part(1, 100, "235.00")], [part(1, 100, "240.00")], [1], CENT)
    assert steps(bridge) == {"price": Decimal("5.00")}
    price = step(bridge, "price")
    assert (price.model, price.price_before, price.price_now) == ("H100", Decimal("2.35"), Decimal("2.40"))


def test_more_hours_at_the_same_price_are_an_hours_step() -> None:
    bridge = spend_bridge([part(1, 100, "240.00")], [part(1, 150, "360.00")], [1], CENT)
    assert steps(bridge) == {"hours": Decimal("120.00")}
    assert step(bridge, "hours").slot_seconds == 50 * HOUR


def test_hours_that_move_to_an_expensive_model_are_a_mix_step() -> None:
    before = [part(1, 50, "100.00", "A100"), part(1, 50, "200.00")]
    now = [part(1, 25, "50.00", "A100"), part(1, 75, "300.00")]
    bridge = spend_bridge(before, now, [1], CENT)
    assert steps(bridge) == {"mix": Decimal("50.00")}
    assert step(bridge, "mix").model == "H100"


def test_a_project_without_an_earlier_charge_is_new_even_if_its_model_is_not() -> None:
    now = [part(1, 10, "24.00"), part(2, 10, "24.00"), part(3, 20, "48.00")]
    bridge = spend_bridge([part(1, 10, "24.00")], now, [1], CENT)
    assert steps(bridge) == {"new": Decimal("72.00")}
    assert step(bridge, "new").projects == (3, 2)


def test_a_project_that_was_charged_on_later_days_of_the_month_before_is_not_new() -> None:
    bridge = spend_bridge([part(1, 10, "24.00")], [part(1, 10, "24.00"), part(2, 10, "24.00")], [1, 2], CENT)
    assert steps(bridge) == {"hours": Decimal("24.00")}


def test_without_earlier_hours_the_present_price_values_the_hours() -> None:
    bridge = spend_bridge([], [part(1, 10, "24.00")], [1], CENT)
    assert steps(bridge) == {"hours": Decimal("24.00")}


def test_corrections_and_shared_idle_time_have_steps_of_their_own() -> None:
    before = [part(None, 5, "10.00", kind="idle"), part(None, 0, "1.00", kind="correction")]
    now = [part(None, 5, "12.00", kind="idle"), part(None, 0, "-22.39", kind="correction")]
    now += [part(None, 0, "-5.00", kind="adjustment")]
    assert steps(spend_bridge(before, now, [], CENT)) == {
        "idle": Decimal("2.00"),
        "corrections": Decimal("-23.39"),
        "adjustments": Decimal("-5.00"),
    }


def test_equal_periods_have_no_steps() -> None:
    same = [part(1, 100, "235.00")]
    assert spend_bridge(same, same, [1], CENT).steps == ()


PARTS = st.dictionaries(
    st.tuples(st.sampled_from([None, 1, 2, 3]), st.sampled_from(["A100", "H100", "L4"])),
    st.tuples(st.integers(-5, 10**9), st.integers(-50, 10**7)),
    max_size=8,
).map(
    lambda groups: [
        SpendPart(project, model, model, seconds, cents * CENT)
        for (project, model), (seconds, cents) in groups.items()
    ]
)
APART = st.lists(
    st.tuples(st.sampled_from(["idle", "correction", "adjustment"]), st.integers(-(10**5), 10**5))
).map(
    lambda rows: [SpendPart(None, kind, "", 0, cents * CENT, kind) for kind, cents in rows]  # type: ignore[arg-type]
)


@given(PARTS, APART, PARTS, APART, st.sets(st.sampled_from([None, 1, 2, 3])))
def test_the_steps_of_any_two_periods_sum_to_the_difference_in_whole_cents(
    before: list[SpendPart],
    before_apart: list[SpendPart],
    now: list[SpendPart],
    now_apart: list[SpendPart],
    known: set[int | None],
) -> None:
    bridge = spend_bridge([*before, *before_apart], [*now, *now_apart], known, CENT)
    assert bridge.before + sum((each.amount for each in bridge.steps), Decimal(0)) == bridge.now
    assert [each.kind for each in bridge.steps] == [kind for kind in STEP_KINDS if kind in steps(bridge)]
    assert all(each.amount == each.amount.quantize(CENT) for each in bridge.steps)


@pytest.mark.parametrize("unit", ["1", "0.01", "0.001"])
def test_steps_have_the_decimals_of_the_currency(unit: str) -> None:
    before = [SpendPart(1, "H100", "H100", 3 * HOUR, Decimal(unit) * 100)]
    now = [SpendPart(1, "H100", "H100", 7 * HOUR, Decimal(unit) * 334)]
    for each in spend_bridge(before, now, [1], Decimal(unit)).steps:
        assert each.amount % Decimal(unit) == 0
