"""Test prices, price factors and the currency on the command line."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime

from telemetry.models import BillingCurrency, Price, PriceFactor
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.cli.test_hosts import run_ok
from tests.world import A100, H100, World


def next_january() -> date:
    return date(datetime.now(UTC).year + 1, 1, 1)


def test_finance_sets_prices_factors_and_the_currency_and_everybody_lists_them(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.finance)
    output = run_ok(gpupool, f"price set --model {H100} --cost 2.10 --price 2.40 --from 'tomorrow 00:00'")
    assert f"{H100} costs EUR 2.400000 an hour from" in output
    output = run_ok(gpupool, "price-factor set --priority low --factor 0.8 --from 'tomorrow 00:00'")
    assert "The price of priority low is multiplied by 0.8000 from" in output
    run_ok(gpupool, "price-factor set --type inference --pool shared --factor 1.5 --from 'tomorrow 00:00'")
    month = next_january()
    for model in (H100, A100):
        run_ok(
            gpupool,
            f"price set --model {model} --cost 300 --price 400 --currency JPY --from {month}T00:00+00:00",
        )
    output = run_ok(gpupool, f"currency change jpy --from-month {month:%Y-%m} --why 'new owner'")
    assert f"Charges are in JPY from {month:%Y-%m} on." in output
    assert (Price.objects.count(), PriceFactor.objects.count()) == (3, 2)
    assert BillingCurrency.objects.get().currency == "JPY"
    sign_in(served_world.vision.member)
    assert "EUR 2.400000" in run_ok(gpupool, "price list")
    assert "priority low" in run_ok(gpupool, "price-factor list")
    [row] = json.loads(run_ok(gpupool, "currency list --json"))
    assert row == {"currency": "JPY", "decimals": 0, "first_month": month.isoformat()}


def test_an_invalid_factor_is_refused_with_the_allowed_values(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.finance)
    answer = gpupool(
        "price-factor", "set", "--priority", "low", "--factor", "0.12345", "--from", "tomorrow 00:00"
    )
    assert answer.code == 1 and "allowed: more than 0, up to 100, with at most 4 decimals" in answer.err
    sign_in(served_world.vision.lead)
    answer = gpupool("price-factor", "set", "--priority", "low", "--factor", "1", "--from", "tomorrow 00:00")
    assert answer.code == 1 and "Only finance" in answer.err
