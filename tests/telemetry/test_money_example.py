"""Test the worked example of docs/money.md with the code that charges."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from portal.reads.money.overview.curve import spend_curve
from portal.wording.formatting import PRIORITY_WORDS
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.audit.ledger_audit import audit_ledger
from telemetry.core.amounts import CENT, ZERO, round_amount, round_parts, split_amount
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.core.charge_pieces import lost_time
from telemetry.core.currencies import decimals_of, smallest_unit
from telemetry.core.guarantees import GuaranteeStep, guaranteed_slot_seconds
from telemetry.core.spending.spend_bridge import SpendPart, spend_bridge
from telemetry.models import Charge, ChargeBucketChoices, StatementLine
from telemetry.money.charges import charge_all_gpus
from telemetry.money.reconciliation import IDLE_BUCKETS, OVERHEAD_BUCKETS, UNCHARGED_BUCKETS
from telemetry.money.signing.statement_key import signed_text
from telemetry.reads.overview.day_totals import DayTotal
from tests.telemetry.rows import (
    at,
    cost_centre,
    hold,
    host_state,
    insert_copy,
    price,
    price_factor,
    reservation,
    split,
    workload,
)
from tests.world import H100, World, units_of

pytestmark = pytest.mark.django_db


def example(world: World) -> list[Charge]:
    price(H100, "2.10", "2.40", since=at(0, day=1))
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9), at(11, 30), end_code="finished")
    hold(
        workload(world, world.language),
        unit,
        at(12),
        at(14),
        end_code="killed_at_grace",
        checkpoint=at(13, 15),
    )
    booked = reservation(world, world.robotics, [unit], at(14), at(16))
    inside = workload(world, world.robotics, reservation=booked)
    hold(inside, unit, at(14, 30), at(15, 30), end_code="finished", reservation=booked)
    host_state(world.hosts["alpha"], at(16, 30), admin="maintenance")
    charge_all_gpus(at(17, 1))
    return list(Charge.objects.filter(gpu=unit.gpu_id).order_by("start"))


def amount(value: Decimal) -> str:
    """Format with at least two decimals and no further trailing zeros."""
    text = f"{value:f}".rstrip("0")
    whole, _, decimals = text.partition(".")
    return f"{whole}.{decimals:0<2}"


def test_the_documented_tables_equal_the_charges_of_the_code(world: World, root: Path) -> None:
    rows = [
        f"| {line.start:%H:%M} | {line.end:%H:%M} | {line.bucket} |"
        f" {line.team_name}{' ' if line.team_name else ''}| "
        f"{amount(line.cost)} | {amount(line.charged)} |"
        for line in example(world)
    ]
    text = (root / "docs" / "money.md").read_text()
    table = text.partition("<!-- example")[2].partition("<!-- /example")[0]
    assert [line for line in table.splitlines() if line.startswith("| ")][1:] == rows


def test_the_documented_sum_equals_the_sum_of_the_lines(world: World, root: Path) -> None:
    lines = example(world)

    def cost(buckets: tuple[ChargeBucketChoices, ...]) -> Decimal:
        return sum((line.cost for line in lines if line.bucket in buckets), ZERO)

    charged = sum((line.charged for line in lines), ZERO)
    figures = [
        charged,
        charged - cost(CHARGED_BUCKETS),
        cost(UNCHARGED_BUCKETS),
        cost(IDLE_BUCKETS),
        cost(OVERHEAD_BUCKETS),
    ]
    total = charged - figures[1] + sum(figures[2:], ZERO)
    words = "charged {} - margin {} + uncharged {} + idle {} + overhead {} = {}".format(
        *map(amount, figures), amount(total)
    )
    assert words in (root / "docs" / "money.md").read_text()
    assert total == 8 * Decimal("2.10")


def documented_table(root: Path, name: str) -> list[str]:
    """Return the rows of the table between the comments ``name`` and ``/name``, without its header."""
    text = (root / "docs" / "money.md").read_text()
    table = text.partition(f"<!-- {name}:")[2].partition(f"<!-- /{name} -->")[0]
    return [line.strip() for line in table.splitlines() if line.strip().startswith("| ")][1:]


def test_the_documented_refunds_equal_those_of_the_code(root: Path) -> None:
    rows = []
    for checkpoint, minutes in ((at(12, 40), 60), (at(10), 60), (None, 60), (None, 0), (None, 300)):
        lost = lost_time(
            end_code="evicted_for_guarantee",
            started=at(9),
            ended=at(13),
            checkpoint=checkpoint,
            keeps_state=False,
            forgiven=timedelta(minutes=minutes),
        )
        until = lost[0] if lost else at(13)
        saved = f"{checkpoint:%H:%M}" if checkpoint else "none"
        refunded = (at(13) - until) // timedelta(minutes=1)
        rows.append(f"| {saved} | {minutes} minutes | {until:%H:%M} | {refunded} minutes |")
    assert documented_table(root, "refunds") == rows


def test_the_documented_shares_by_guarantee_equal_those_of_the_code(root: Path) -> None:
    start, end = at(0, day=1), datetime(2026, 4, 1, tzinfo=UTC)
    change = GuaranteeStep(at(12, day=16), 8, 0)
    weights = [
        guaranteed_slot_seconds(0, [change], start, end),
        guaranteed_slot_seconds(4, [], start, end),
    ]
    costs = split_amount(Decimal("930.00"), weights)
    rows = [
        f"| {team} | {weight // 86_400} | {cost} |"
        for team, weight, cost in zip(("Vision", "Language"), weights, costs, strict=True)
    ]
    assert documented_table(root, "guarantees") == rows


def test_the_documented_difference_is_found_by_the_audit(world: World, root: Path) -> None:
    for each, code in ((world.vision, "CC-100"), (world.language, "CC-200"), (world.robotics, "CC-300")):
        cost_centre(each, code, at(0, day=1))
    line = example(world)[0]
    month = line.month
    assert [each for each in audit_ledger(month, at(17, 1)) if each.gpu == line.gpu_id] == []
    negative = {"slots": -line.slots, "slot_seconds": -line.slot_seconds, "cost": -line.cost}
    insert_copy(line, corrects_id=line.pk, reversal=True, charged=-line.charged, **negative)
    insert_copy(line, corrects_id=line.pk, team_id=world.language.team.pk, team_name="Language")
    [found] = [each for each in audit_ledger(month, at(17, 1)) if each.gpu == line.gpu_id]
    shown = replace(found, line=11, gpu=1, found="2", expected="1", fact="allocation 1")
    text = (root / "docs" / "money.md").read_text()
    assert text.partition("<!-- audit:")[2].partition("<!-- /audit")[0].splitlines()[1].strip() == str(shown)


def test_the_documented_text_of_a_signature_is_signed(root: Path) -> None:
    text = signed_text(date(2026, 3, 1), "DIGEST").decode()
    assert f"`{text}`" in (root / "docs" / "money.md").read_text()


def test_the_documented_cents_equal_the_cents_of_the_code(world: World, root: Path) -> None:
    price(H100, "0.004", since=at(0, day=1))
    for unit, team in zip(units_of(world.hosts["alpha"]), world.teams, strict=False):
        hold(workload(world, team), unit, at(9), at(10), end_code="finished")
    charge_all_gpus(at(10, 5))
    lines = StatementLine.objects.filter(bucket="used").select_related("team").order_by("pk")
    rows = [f"| {line.team.name} | {line.charged} | {line.charged_cents} |" for line in lines if line.team]
    assert documented_table(root, "cents") == rows


def test_the_documented_factors_equal_the_charges_of_the_code(world: World, root: Path) -> None:
    price(H100, "2.10", "2.40", since=at(0, day=1))
    price_factor("0.8", since=at(0, day=1), priority=0)
    price_factor("1.5", since=at(0, day=1), workload_type="inference")
    kinds = [(1, "training"), (0, "training"), (0, "inference")]
    for (priority, kind), unit in zip(kinds, units_of(world.hosts["alpha"]), strict=False):
        work = workload(world, world.vision, priority=priority, type=kind)
        hold(work, unit, at(9), at(19), end_code="finished")
    charge_all_gpus(at(20, 1))
    rows = [
        f"| {PRIORITY_WORDS[line.workload.priority]} | {line.workload_type} "
        f"| {amount(line.work_price or ZERO)} | {amount(line.charged)} "
        f"| {amount(line.cost)} | {amount(line.charged - line.cost)} |"
        for line in Charge.objects.filter(bucket="used").order_by("gpu")
        if line.workload
    ]
    assert documented_table(root, "factors") == rows


def test_the_documented_decimals_of_currencies_equal_those_of_the_code(root: Path) -> None:
    exact, rows = [Decimal("100.400400")] * 3, []
    for currency in ("JPY", "EUR", "KWD"):
        parts = round_parts(exact, smallest_unit(currency))
        rows.append(
            f"| {currency} | {decimals_of(currency)} | {exact[0]} each | "
            f"{', '.join(map(str, parts))} | {sum(parts)} |"
        )
    assert documented_table(root, "currencies") == rows


def test_the_documented_split_equals_that_of_the_code(world: World, root: Path) -> None:
    price(H100, "2.40", since=at(0, day=1))
    split(world.vision, at(9), CC_1="33.33", CC_2="33.33", CC_3="33.34")
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9), at(9, 0, 10), end_code="finished")
    charge_all_gpus(at(9, 2))
    lines = Charge.objects.filter(bucket="used").order_by("cost_centre")
    assert [
        f"| {line.cost_centre} | {line.share_percent} % | {line.slot_seconds} | {line.charged} |"
        for line in lines
    ] == documented_table(root, "split")


def test_the_documented_bridge_equals_that_of_the_code(root: Path) -> None:
    def part(project: int, model: str, hours: int, price: str) -> SpendPart:
        seconds = hours * SLOT_SECONDS_PER_GPU_HOUR
        return SpendPart(project, model, model, seconds, round_amount(hours * Decimal(price)))

    before = [part(1, "H100", 100, "2.35"), part(2, "A100", 50, "1.10")]
    now = [part(1, "H100", 120, "2.40"), part(2, "A100", 40, "1.10"), part(3, "H100", 10, "2.40")]
    correction = SpendPart(1, "H100", "H100", 0, Decimal("-5.00"), "correction")
    bridge = spend_bridge(before, [*now, correction], [1, 2], CENT)
    assert documented_table(root, "bridge") == [
        f"| October | {bridge.before} |",
        *(f"| {step.kind} | {step.amount} |" for step in bridge.steps),
        f"| November | {bridge.now} |",
    ]


def test_the_documented_days_equal_those_of_the_code(root: Path) -> None:
    october, november = date(2026, 10, 1), date(2026, 11, 1)
    given = [
        (october, 1, "8.00"),
        (october, 2, "12.00"),
        (november, 1, "10.00"),
        (november, 2, "20.00"),
    ]
    rows = [DayTotal(month, month.replace(day=day), "EUR", 0, Decimal(text)) for month, day, text in given]
    rows.append(DayTotal(november, october, "EUR", 0, Decimal("-5.00")))
    curve = spend_curve(november, datetime(2026, 11, 3, tzinfo=UTC), rows, "EUR", Decimal("300.00"))
    assert curve.former_corrections == ZERO
    corrections = curve.corrections
    assert documented_table(root, "days") == [
        f"| corrections | {corrections} | {corrections} | {round_amount(curve.former_corrections)} | |",
        *(
            f"| {each.day:%-d %B} | {each.charged} | {each.total} | {each.former_total} | {each.even_pace} |"
            for each in curve.days[:2]
        ),
    ]


def test_every_bucket_is_documented(root: Path) -> None:
    text = (root / "docs" / "money.md").read_text()
    assert [bucket for bucket in ChargeBucketChoices.values if f"`{bucket}`" not in text] == []
