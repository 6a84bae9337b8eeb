"""Test the worked example of docs/money.md with the code that charges."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from telemetry.core.amounts import ZERO
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.models import Charge, ChargeBucketChoices
from telemetry.money.charges import charge_all_gpus
from telemetry.money.reconciliation import IDLE_BUCKETS, OVERHEAD_BUCKETS, UNCHARGED_BUCKETS
from tests.telemetry.rows import at, hold, host_state, price, reservation, workload
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


def test_every_bucket_is_documented(root: Path) -> None:
    text = (root / "docs" / "money.md").read_text()
    assert [bucket for bucket in ChargeBucketChoices.values if f"`{bucket}`" not in text] == []
