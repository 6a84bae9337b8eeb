"""Test the rate card page: price factors and the currency, and the page of a line with factors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.models import User
from telemetry.models import BillingCurrency, Charge, PriceFactor
from telemetry.money.charges import charge_all_gpus
from tests.telemetry.rows import at, billing_currency, hold, price, price_factor, workload
from tests.world import A100, H100, World, units_of

pytestmark = pytest.mark.django_db


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def post(world: World, **values: str) -> tuple[int, str]:
    client = signed_in(world.finance)
    answer = client.post(reverse("rate-card"), values)
    page = client.get(reverse("rate-card")) if answer.status_code == 302 else answer
    return answer.status_code, page.content.decode()


def tomorrow() -> str:
    return f"{timezone.now() + timedelta(days=1):%Y-%m-%dT%H:%M}"


def test_finance_sets_a_factor_and_everybody_sees_it(world: World) -> None:
    code, text = post(
        world, verb="factor", priority="low", factor="0.8", valid_from=tomorrow(), note="nights"
    )
    assert code == 302 and PriceFactor.objects.get().priority == 0
    assert "Priority low" in text and "× 0.8" in text and "to come" in text and "nights" in text
    seen = signed_in(world.vision.member).get(reverse("rate-card")).content.decode()
    assert "Priority low" in seen and "Set the factor" not in seen


def test_an_invalid_factor_is_shown_at_its_field(world: World) -> None:
    code, text = post(world, verb="factor", priority="low", factor="0.80001", valid_from=tomorrow())
    assert code == 400 and "allowed: more than 0, up to 100, with at most 4 decimals" in text
    code, text = post(world, verb="factor", factor="1", valid_from=tomorrow())
    assert code == 400 and "give exactly one of the two" in text
    assert not PriceFactor.objects.exists()


def test_finance_changes_the_currency_from_a_month_on_that_has_prices_in_the_new_currency(
    world: World,
) -> None:
    year = timezone.now().year + 1
    code, text = post(world, verb="currency", currency="JPY", first_month="next")
    assert code == 400 and "a year and a month, such as 2026-03" in text
    for model in (H100, A100):
        price(model, "2.40", since=at(0, day=1))
    code, text = post(world, verb="currency", currency="JPY", first_month=f"{year}-01")
    assert code == 400 and "no price in JPY begins at" in text
    for model in (H100, A100):
        price(model, "400", since=datetime(year, 1, 1, tzinfo=UTC), currency="JPY")
    code, text = post(world, verb="currency", currency="JPY", first_month=f"{year}-01")
    assert code == 302 and BillingCurrency.objects.get().currency == "JPY"
    assert f"January {year}" in text and "<b>400</b>" in text


def test_the_page_of_a_line_writes_out_its_factors(world: World) -> None:
    price(H100, "2.10", "2.40", since=at(0, day=1))
    price_factor("0.5", since=at(0, day=1), priority=0)
    price_factor("1.25", since=at(0, day=1), workload_type="inference")
    work = workload(world, world.vision, priority=0, type="inference")
    hold(work, units_of(world.hosts["alpha"])[0], at(9), at(11), end_code="finished")
    charge_all_gpus(at(12))
    line = Charge.objects.get(workload=work)
    url = reverse("charge-line", args=[line.pk])
    text = signed_in(world.finance).get(url).content.decode()
    formula = (
        "840/840 × 7,200 s / 3,600 × 2.400000 × 0.5000 (priority low) × 1.2500 (type inference) = 3.000000"
    )
    assert formula in text and "Factor, priority low" in text
    answer = signed_in(world.finance).get(f"/api/v1/charges/{line.pk}/").json()
    assert (answer["amount"], answer["rounding"], answer["line"]["price_factor"]) == (
        "3.000000",
        "0.000000",
        "0.62500000",
    )
    assert [row["factor"] for row in answer["factors"]] == ["0.5000", "1.2500"]


def test_a_month_in_a_currency_without_decimals_shows_whole_amounts(world: World) -> None:
    billing_currency("JPY", at(0, day=1).date())
    for model in (H100, A100):
        price(model, "350.25", "400.4", since=at(0, day=1), currency="JPY")
    work = workload(world, world.language)
    hold(work, units_of(world.hosts["alpha"])[0], at(9), at(12), end_code="finished")
    charge_all_gpus(at(13))
    query = {"month": "2026-03", "by": "team"}
    text = signed_in(world.finance).get(reverse("chargeback"), query).content.decode()
    assert "1,201" in text and "1,201." not in text and "amounts in JPY" in text
    downloaded = signed_in(world.finance).get(reverse("chargeback"), query | {"format": "csv"})
    rows = b"".join(downloaded.streaming_content).decode().splitlines()  # type: ignore[attr-defined]
    [row] = [row for row in rows if row.startswith("Language,")]
    assert ",1201," in row and ",JPY," in row
