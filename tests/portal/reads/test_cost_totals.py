"""Test the cost of workloads so far, as cards and lists show it."""

from __future__ import annotations

from decimal import Decimal

from portal.reads.money import cost_totals
from telemetry.money.charges import charge_all_gpus
from tests.telemetry.rows import at, cost_centre, hold, price, workload
from tests.world import A100, H100, World, units_of


def test_the_cost_so_far_has_the_charges_and_the_held_time_after_the_last_charge(world: World) -> None:
    for model in (H100, A100):
        price(model, "2.40", since=at(0, day=1))
    cost_centre(world.vision, "CC-100", at(0, day=1))
    work = workload(world, world.vision)
    hold(work, units_of(world.hosts["alpha"])[0], at(9))
    charge_all_gpus(at(10, 5))
    moment = at(10, 30)
    assert cost_totals.workload_costs([work.pk], moment, cost_totals.prices(moment)) == {
        work.pk: {"EUR": Decimal("3.60")}
    }


def test_units_without_a_price_have_an_unknown_cost_and_not_zero(world: World) -> None:
    running, over = workload(world, world.vision), workload(world, world.vision)
    units = units_of(world.hosts["alpha"])
    hold(running, units[0], at(9))
    hold(over, units[1], at(9), at(9, 30), end_code="finished")
    assert cost_totals.workload_costs([running.pk, over.pk], at(10), cost_totals.prices(at(10))) == {}
    charge_all_gpus(at(11))
    assert cost_totals.workload_costs([running.pk, over.pk], at(12), cost_totals.prices(at(12))) == {}, (
        "the charge lines have no price either"
    )
