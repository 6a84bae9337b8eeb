"""Test the panels above the table of the chargeback page, and their CSV files."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import re
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from portal import policy
from portal.wording.pages.money.correction_texts import cause_sentence
from scheduler.models import Workload
from telemetry.money.statements import set_idle_payer
from telemetry.reads.chargeback import charges_by
from tests.portal.charged_january import MONTH, charged
from tests.world import World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db
JANUARY = dt.date(2026, 1, 1)


def page(world: World, role: str, **query: str) -> str:
    client = Client()
    client.force_login(world.people[role])
    return client.get(reverse("chargeback"), {"month": MONTH, **query}).content.decode()


def csv_rows(world: World, role: str, name: str) -> list[dict[str, str]]:
    client = Client()
    client.force_login(world.people[role])
    answer: Any = client.get(reverse(name, args=[MONTH]))
    assert answer.status_code == 200
    rows = list(csv.DictReader(io.StringIO(b"".join(answer).decode())))
    return [row for row in rows if not next(iter(row.values())).startswith("# rows")]


def api(world: World, role: str, **query: str) -> Any:
    client = APIClient()
    client.force_authenticate(world.people[role])
    return client.get("/api/v1/chargeback/", query)


def test_finance_sees_the_months_the_figures_the_equation_and_the_days(
    world: World, charged: Workload
) -> None:
    text = page(world, "finance")
    total = f"{charges_by('team', JANUARY).charged:,.2f}"
    assert f'aria-label="January 2026, EUR {total}, open"' in text
    assert re.search(rf'class="hero-figure">{total}<', text)
    assert "Yes, to the cent:" in text
    assert "There are no charges in December." in text
    for bucket in ("reserved_unused,used", "unallocated,preempted,hardware_lost", "unhealthy,maintenance"):
        assert f"{reverse('charge-lines')}?month={MONTH}&amp;bucket={bucket}" in text
    figure = json.loads(
        text.partition('<script id="figure-spend" type="application/json">')[2].partition("<")[0]
    )
    month = next(trace for trace in figure["data"] if trace["name"] == "January")
    assert Decimal(str(month["y"][-1])) == charges_by("team", JANUARY).charged
    assert month["customdata"][4] == f"{reverse('charge-lines')}?month={MONTH}&day=2026-01-04"


def test_the_label_the_hover_and_the_link_of_a_point_in_the_chart_name_the_same_day(
    world: World, charged: Workload
) -> None:
    """The point of a day stands at its end: x is the number of whole days since the start of the month."""
    client = Client()
    client.force_login(world.finance)
    figure = client.get(reverse("chargeback"), {"month": MONTH}).context["overview"]["spend"]["chart"].figure
    axis, points = figure["layout"]["xaxis"], figure["data"][0]
    labels = dict(zip(axis["tickvals"], axis["ticktext"], strict=True))
    urls = dict(zip(points["x"], points["customdata"], strict=True))
    assert labels[0] == "start" and urls[0] == ""
    assert (labels[5], labels[10]) == ("5 Jan", "10")
    assert f"day={MONTH}-05" in urls[5] and f"day={MONTH}-10" in urls[10]
    assert axis["unifiedhovertitle"] == {"text": "end of day %{x}"}


def test_the_terms_of_a_month_whose_teams_pay_idle_time_open_the_rows_that_sum_to_them(
    world: World, charged: Workload
) -> None:
    assert set_idle_payer(JANUARY, "use")
    client = Client()
    client.force_login(world.finance)
    terms = client.get(reverse("chargeback"), {"month": MONTH}).context["overview"]["equation"]["terms"]
    urls = {term["label"]: term["url"] for term in terms}
    amounts = {term["label"]: term["amount"] for term in terms}
    assert Decimal(amounts["Charged"].replace(",", "")) > charges_by("bucket", JANUARY, bucket="used").charged
    table = client.get(urls["Charged"]).context["table"]
    assert f"{table.charged:,.2f}" == amounts["Charged"]
    lines = client.get(urls["Idle and uncharged"])
    total = lines.context["total"]
    assert f"{total.cost - total.idle_share:,.2f}" == amounts["Idle and uncharged"]
    assert f"teams pay €{total.idle_share:,.2f} of it as shares of idle time" in lines.content.decode()


@pytest.mark.parametrize("name", ["chargeback-days", "chargeback-changes", "chargeback"])
def test_each_csv_file_has_the_chosen_separator_and_decimal_sign(
    world: World, charged: Workload, name: str
) -> None:
    client = Client()
    client.force_login(world.finance)
    query = {"month": MONTH, "format": "csv"} if name == "chargeback" else {}
    address = reverse(name, args=[] if name == "chargeback" else [MONTH])

    def rows_of(sign: str, **options: str) -> list[list[str]]:
        answer: Any = client.get(address, {**query, **options})
        return list(csv.reader(io.StringIO(b"".join(answer).decode()), delimiter=sign))[:-1]

    plain, other = rows_of(","), rows_of(";", separator="semicolon", decimal="comma")
    is_number = re.compile(r"-?\d+\.\d+")
    assert other == [
        [cell.replace(".", ",") if is_number.fullmatch(cell) else cell for cell in row] for row in plain
    ]
    assert any("," in cell for row in other for cell in row) == (name != "chargeback-changes")
    refused = client.get(address, {**query, "decimal": "comma"})
    assert refused.status_code == 404 and "which is also the separator" in refused.content.decode()


@pytest.mark.parametrize("role", ["lead", "member"])
def test_others_see_their_own_figures_without_the_terms_of_cost(
    world: World, charged: Workload, role: str
) -> None:
    text = page(world, role)
    assert "Does it add up?" not in text and "Spend against budget" in text
    charged_to = charges_by("team", JANUARY, policy.visible_cells(world.people[role])).charged
    assert f'<dd class="hero-figure">{charged_to:,.2f}' in text


@pytest.mark.parametrize(
    ("since", "until", "text"),
    [
        ("2026-10-14T03:00:00+00:00", "2026-10-14T05:00:00+00:00", "14 Oct 03:00-05:00 UTC"),
        ("2026-10-14T03:00:00+00:00", "2026-10-15T05:00:00+00:00", "14 Oct 03:00 to 15 Oct 05:00 UTC"),
        ("2026-10-14T03:00:00+00:00", None, "from 14 Oct 03:00 UTC"),
    ],
)
def test_the_reason_of_a_correction_names_the_zone_of_its_times(
    since: str, until: str | None, text: str
) -> None:
    numbers = {"host": "h2", "since": since, "until": until}
    assert cause_sentence("host_silent", numbers) == f"host h2 was silent {text}"


def test_the_panels_are_shown_only_without_a_filter(world: World, charged: Workload) -> None:
    assert "Spend against budget" not in page(world, "finance", team=str(world.vision.team.pk))


def test_the_csv_file_of_the_days_and_the_api_have_the_same_amounts(world: World, charged: Workload) -> None:
    for role in ("finance", "member"):
        rows = csv_rows(world, role, "chargeback-days")
        answer = api(world, role, month=MONTH).json()["overview"]
        days = {day["day"]: day["charged"] for day in answer["days"]}
        assert {row["day"]: row["charged"] for row in rows[1:]} == days
        assert rows[-1]["charged_so_far"] == answer["charged"]
        assert {row["currency"] for row in rows} == {"EUR"}
    assert answer["charged"] == "100.00"


def test_a_month_without_a_month_before_has_an_empty_file_of_changes(world: World, charged: Workload) -> None:
    assert csv_rows(world, "finance", "chargeback-changes") == []
    change = api(world, "finance", month=MONTH).json()["overview"]["change"]
    assert (change["missing"], change["steps"]) == ("first_month", [])


def test_the_api_refuses_a_month_without_charges_and_viewers_without_charges(
    world: World, charged: Workload
) -> None:
    refused = api(world, "finance", month="2025-12")
    assert refused.status_code == 400 and "allowed: 2026-01 to" in json.dumps(refused.json())
    assert api(world, "stranger", month=MONTH).status_code == 403
