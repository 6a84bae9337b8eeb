"""Say what changed since the same days of the month before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portal.wording.chargeback.overview_texts import Finding, names_text
from portal.wording.formatting import model_name
from portal.wording.pages.money.money_pages import DEDICATED_UNUSED
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.currencies import decimals_of
from telemetry.core.spending.spend_bridge import BridgeStep, SpendBridge

STEP_LABELS = {
    "price": "Price",
    "hours": "Hours",
    "mix": "Mix",
    "new": "New projects",
    "idle": "Share of idle GPUs",
    "corrections": "Corrections",
    "adjustments": "Credits and adjustments",
}
# What each step means, for the documentation of the API.
STEP_MEANINGS = {
    "price": "changed prices",
    "hours": "more or fewer GPU-hours",
    "mix": "a change between cheap and expensive GPUs",
    "new": "projects without a charge in the month before",
    "idle": "idle time that teams pay",
    "corrections": "corrections of earlier months",
    "adjustments": "credits and manual adjustments",
}


def step_note(step: BridgeStep, project_names: Mapping[Any, str], currency: str) -> str:
    """Return the evidence of a step, such as ``H100 80GB 2.35 → 2.40``; "" without one."""
    if step.kind == "price" and step.price_before is not None and step.price_now is not None:
        decimals = decimals_of(currency)
        prices = f"{step.price_before:,.{decimals}f} → {step.price_now:,.{decimals}f}"
        return f"{model_name(step.model)} {prices}, mean price of an hour"
    if step.kind == "hours":
        hours = step.slot_seconds / SLOT_SECONDS_PER_GPU_HOUR
        return f"{abs(hours):,.0f} {'fewer' if hours < 0 else 'more'} GPU-hours"
    if step.kind == "mix" and step.model:
        return f"a larger part of the hours on {model_name(step.model)}"
    if step.kind == "new":
        return names_text([project_names.get(key) or DEDICATED_UNUSED for key in step.projects])
    return {"corrections": "facts that became known after a close", "idle": "teams pay for idle GPUs"}.get(
        step.kind, ""
    )


def bridge_finding(bridge: SpendBridge, amount_of_largest: str) -> Finding:
    """Say which step is the largest. ``amount_of_largest`` is its amount with a sign."""
    step = largest_step(bridge)
    if step is None:
        return Finding("Nothing changed.")
    label = STEP_LABELS[step.kind]
    return Finding(f"The largest step is {label[0].lower()}{label[1:]}:", f"{amount_of_largest}.")


def largest_step(bridge: SpendBridge) -> BridgeStep | None:
    """Return the step with the largest amount, up or down; None if nothing changed."""
    return max(bridge.steps, key=lambda step: abs(step.amount), default=None)


def today_text(amount: str) -> str:
    """Return the sentence about the day that is not over, which is not compared."""
    return f"Today is not over and is not compared. It has {amount} so far."
