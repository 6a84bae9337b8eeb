"""Test price factors and currencies: who may set them, and the refusal of each invalid value."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent
from portal.services.money import budgets, rate_card
from portal.services.money.billing_currency import change_currency, set_first_currency
from portal.services.money.price_factors import set_price_factor
from portal.services.work import workload_preview
from telemetry.models import BillingCurrency, Price, PriceFactor
from telemetry.money.charges import charge_all_gpus
from tests.portal.rejections import rejected
from tests.seeds import first_cases
from tests.world import A100, H100, World

pytestmark = pytest.mark.django_db
APRIL = date(2026, 4, 1)
START_OF_APRIL = datetime(2026, 4, 1, tzinfo=UTC)


def set_factor(world: World, **also: Any) -> PriceFactor:
    fields: dict[str, Any] = {
        "actor": world.finance,
        "priority": "low",
        "factor": "0.8",
        "valid_from": world.now + timedelta(hours=1),
        "now": world.now,
    }
    return set_price_factor(**(fields | also))


def set_price(world: World, **also: Any) -> Price:
    fields: dict[str, Any] = {
        "actor": world.finance,
        "model": H100,
        "cost": "2.10",
        "price": "2.40",
        "valid_from": world.now,
        "now": world.now,
    }
    return rate_card.set_price(**(fields | also))


def problems(verb: Any, world: World, **also: Any) -> dict[str, str]:
    with pytest.raises(Invalid) as refused:
        verb(world, **also)
    return refused.value.fields


def test_finance_sets_a_factor_and_the_change_is_audited(world: World) -> None:
    row = set_factor(world, factor="0.8125", note="nights")
    assert (row.priority, row.workload_type, row.factor) == (0, "", Decimal("0.8125"))
    event = AuditEvent.objects.get(verb="set_price_factor")
    assert (event.actor, event.why, event.after["factor"]) == (world.finance, "nights", "0.8125")
    for actor in (world.operator, world.auditor, world.vision.lead):
        with pytest.raises(NotAllowed):
            set_factor(world, actor=actor)
    with rejected("priority low has a factor from that time already"):
        set_factor(world)


@pytest.mark.parametrize(
    ("given", "field", "words"),
    first_cases(
        3,
        [
            (
                {"factor": "0.80001"},
                "factor",
                "factor is '0.80001'; allowed: more than 0, up to 100, with at most 4",
            ),
            ({"factor": "-1"}, "factor", "factor is '-1'; allowed: more than 0"),
            ({"factor": "0"}, "factor", "factor is '0'; allowed: more than 0"),
            ({"factor": "101"}, "factor", "factor is '101'; allowed: more than 0, up to 100"),
            ({"factor": "NaN"}, "factor", "factor is 'NaN'; allowed"),
            ({"factor": "cheap"}, "factor", "factor is 'cheap'; allowed"),
            (
                {"priority": "urgent"},
                "priority",
                "priority is 'urgent'; allowed: critical, high, low, normal",
            ),
            (
                {"priority": "", "workload_type": "games"},
                "workload_type",
                "workload_type is 'games'; allowed: inference, interactive, other, training",
            ),
            ({"workload_type": "training"}, "priority", "give exactly one of the two"),
            ({"priority": ""}, "priority", "give exactly one of the two"),
            ({"valid_from": datetime(2026, 1, 1, tzinfo=UTC)}, "valid_from", "valid_from is 2026-01-01"),
        ],
    ),
)
def test_an_invalid_factor_is_refused_with_field_value_and_what_is_allowed(
    world: World, given: dict[str, Any], field: str, words: str
) -> None:
    found = problems(set_factor, world, **given)
    assert list(found) == [field] and words in found[field]
    assert not PriceFactor.objects.exists() and not AuditEvent.objects.exists()


def test_a_factor_of_a_dedicated_pool_or_in_charged_time_is_refused(world: World) -> None:
    found = problems(set_factor, world, pool=world.static)
    assert "allowed: a dynamic pool" in found["pool"]
    charge_all_gpus(world.now + timedelta(hours=3))
    found = problems(set_factor, world, now=world.now + timedelta(hours=3))
    assert "is already charged until" in found["valid_from"]
    set_factor(world, valid_from=world.now + timedelta(hours=3), now=world.now + timedelta(hours=3))


def test_the_preview_of_a_request_has_the_price_with_its_factors(world: World) -> None:
    set_price(world)
    set_price(world, model=A100, cost="1", price="1")
    for name, factor in (("low", "0.5"), ("high", "2")):
        set_factor(world, priority=name, factor=factor, valid_from=world.now)
    set_factor(world, priority="", workload_type="inference", factor="1.5", valid_from=world.now)
    found = {}
    for priority, kind in (("low", "training"), ("normal", "training"), ("high", "inference")):
        answer = workload_preview.preview_workload(
            actor=world.vision.member,
            project=world.vision.project,
            pool=world.shared,
            now=world.now,
            name="fit",
            command="true",
            type=kind,
            priority=priority,
            models=[H100],
            max_runtime_seconds=7200,
        )
        found[priority] = (answer["price_per_hour"], answer["longest_cost"], answer["price_factor"])
    assert found == {
        "low": (Decimal("1.20"), Decimal("2.40"), Decimal("0.5")),
        "normal": (Decimal("2.40"), Decimal("4.80"), 1),
        "high": (Decimal("7.20"), Decimal("14.40"), 3),
    }


def ready_for_yen(world: World) -> None:
    """Set prices in EUR from now on, and in JPY from April on."""
    set_first_currency("EUR", world.now)
    for model in (H100, A100):
        set_price(world, model=model)
        set_price(world, model=model, price="400", cost="350", currency="jpy", valid_from=START_OF_APRIL)


def change(world: World, **also: Any) -> BillingCurrency:
    fields: dict[str, Any] = {
        "actor": world.finance,
        "currency": "JPY",
        "first_month": APRIL,
        "now": world.now,
    }
    return change_currency(**(fields | also))


def test_finance_changes_the_currency_from_a_month_on_that_has_prices_in_the_new_currency(
    world: World,
) -> None:
    ready_for_yen(world)
    row = change(world, currency="jpy", why="new owner")
    assert (row.currency, row.first_month, row.valid_from) == ("JPY", APRIL, START_OF_APRIL)
    assert AuditEvent.objects.get(verb="change_currency").why == "new owner"
    with pytest.raises(NotAllowed):
        change(world, actor=world.operator)
    assert set_price(world, price="390", valid_from=START_OF_APRIL + timedelta(days=1)).currency == "JPY"


@pytest.mark.parametrize(
    ("given", "field", "words"),
    first_cases(
        2,
        [
            (
                {"currency": "yen"},
                "currency",
                "currency is 'yen'; allowed: a code of ISO 4217 with 0, 2 or 3 decimals",
            ),
            ({"currency": "XAU"}, "currency", "allowed: a code of ISO 4217"),
            ({"currency": "CLF"}, "currency", "allowed: a code of ISO 4217"),
            ({"currency": "EUR"}, "currency", "currency is EUR, which 2026-04 has already"),
            ({"first_month": date(2026, 3, 1)}, "first_month", "allowed: 2026-04 or later, not charged yet"),
            ({"first_month": date(2026, 4, 2)}, "first_month", "allowed: the first day of a month"),
            ({"first_month": date(2026, 5, 1)}, "first_month", "but no price in JPY begins at"),
            ({"currency": "KWD"}, "first_month", f"for {A100} in Shared, {A100} in Vision only"),
        ],
    ),
)
def test_an_invalid_change_of_the_currency_is_refused(
    world: World, given: dict[str, Any], field: str, words: str
) -> None:
    ready_for_yen(world)
    charge_all_gpus(world.now + timedelta(hours=2))
    found = problems(change, world, **given)
    assert list(found) == [field] and words in found[field]
    assert BillingCurrency.objects.count() == 1


def test_a_price_has_the_currency_of_its_month_or_a_currency_that_a_later_month_may_get(world: World) -> None:
    set_first_currency("EUR", world.now)
    assert set_price(world).currency == "EUR"
    found = problems(set_price, world, currency="JPY", valid_from=world.now + timedelta(hours=1))
    assert found["currency"].startswith(
        "currency is JPY; allowed: EUR, the currency of 2026-03, or a price from"
    )
    assert set_price(world, currency="JPY", valid_from=START_OF_APRIL).currency == "JPY"
    assert set_price(world, valid_from=START_OF_APRIL).currency == "EUR"


def test_a_new_model_first_needs_a_price_in_the_planned_currency(world: World) -> None:
    set_first_currency("EUR", world.now)
    set_price(world)
    set_price(world, currency="JPY", valid_from=START_OF_APRIL)
    change(world)
    found = problems(set_price, world, model=A100)
    assert f"from 2026-04 on the currency is JPY and {A100} has no price in it" in found["valid_from"]
    set_price(world, model=A100, currency="JPY", valid_from=START_OF_APRIL)
    assert set_price(world, model=A100).currency == "EUR"


def test_a_budget_has_the_currency_and_the_decimals_of_its_month(world: World) -> None:
    ready_for_yen(world)
    change(world)
    fields: dict[str, Any] = {"actor": world.finance, "team": world.vision.team, "now": world.now}
    march = budgets.set_budget(**fields, month=date(2026, 3, 1), amount="500.5")
    april = budgets.set_budget(**fields, month=APRIL, amount="500")
    assert [(row.currency, str(row.amount)) for row in (march, april)] == [("EUR", "500.50"), ("JPY", "500")]
    with pytest.raises(Invalid) as refused:
        budgets.set_budget(**fields, month=APRIL, amount="500.5")
    assert "allowed: at most 0 decimals" in refused.value.fields["amount"]
