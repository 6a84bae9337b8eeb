"""Test exports of charges: whose charges they contain, their options, and the bytes of closed months."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal import policy
from portal.models import Organisation, User
from portal.reads.money.exports import DECIMAL_SIGNS, SEPARATORS, export_download
from portal.services.money import months
from portal.wording.pages.money.export_texts import CHECKED, KIND_LABELS
from scheduler.models import Pool, Project, Team, Workload
from telemetry.core.csv_text import CsvDialect, csv_line
from telemetry.exports.registry import EXPORT_KINDS
from telemetry.models import Charge, CostCentre, CostCentreShare, Price, Statement
from telemetry.money.charges import charge_all_gpus
from telemetry.money.signing.statement_digest import digest_of
from telemetry.reads.chargeback import charges_by
from tests.documents import marked_part
from tests.portal.charged_january import MONTH, START, charged
from tests.portal.web.test_csv_export import end_line_is_right
from tests.seeds import first_cases
from tests.telemetry.rows import billing_currency, change_in_place, host_state
from tests.world import H100, World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db
JANUARY = date(2026, 1, 1)
AFTER = datetime(2026, 2, 10, tzinfo=UTC)


def bytes_of(viewer: User, kind: str, where: dict[str, Any] | None = None, **given: str) -> bytes:
    return b"".join(export_download(viewer, JANUARY, where or {}, {"kind": kind, **given}).parts)


def rows_of(file: bytes) -> list[dict[str, str]]:
    """Return the rows of a CSV file without its last line."""
    return list(csv.DictReader(io.StringIO(file.decode())))[:-1]


def operator_with_charges(charged: Workload) -> User:
    """Make the owner of the charged work an operator."""
    User.objects.filter(pk=charged.owner_id).update(operator=True)
    return User.objects.get(pk=charged.owner_id)


def get(viewer: User, **query: Any) -> Any:
    client = Client()
    client.force_login(viewer)
    return client.get(reverse("export", args=[MONTH]), query)


def test_the_documentation_and_the_menu_name_every_kind() -> None:
    assert re.findall(r"^\| `([^`]+)` \|", marked_part("kinds"), re.MULTILINE) == list(EXPORT_KINDS)
    assert list(KIND_LABELS) == list(EXPORT_KINDS)


def test_the_example_of_separator_and_decimal_sign_is_what_the_code_writes() -> None:
    line = csv_line(["Vision", Decimal("1234.50")], CsvDialect(";", ","))
    assert marked_part("dialect").split() == ["```", line.strip(), "```"]


@pytest.mark.parametrize("kind", ["statement", "lines"])
@pytest.mark.parametrize("role", first_cases(2, ["lead", "team mate", "finance", "auditor", "member"]))
def test_the_rows_of_each_person_sum_to_the_charges_that_the_person_sees(
    world: World, charged: Workload, kind: str, role: str
) -> None:
    viewer = world.people[role]
    file = bytes_of(viewer, kind)
    assert end_line_is_right(file.decode())
    column = "amount" if kind == "statement" else "charged"
    shown = sum((Decimal(row[column]) for row in rows_of(file)), Decimal(0))
    assert shown == charges_by("team", JANUARY, policy.visible_cells(viewer)).charged
    assert (shown == 100) == (role == "member") and (shown == 0) == (role == "team mate")


@pytest.mark.parametrize("role", ["finance", "lead", "operator"])
@pytest.mark.parametrize("kind", ["statement", "lines"])
def test_only_people_who_see_all_charges_get_the_cost_column(
    world: World, charged: Workload, kind: str, role: str
) -> None:
    viewer = operator_with_charges(charged) if role == "operator" else world.people[role]
    assert ("cost" in rows_of(bytes_of(viewer, kind))[0]) == (role == "finance")


@pytest.mark.parametrize("kind", ["statement", "lines"])
@pytest.mark.parametrize("by", ["team", "user", "workload"])
def test_a_filter_selects_the_same_charges_in_each_kind(
    world: World, charged: Workload, kind: str, by: str
) -> None:
    key = {"team": world.vision.team.pk, "user": charged.owner_id, "workload": charged.pk}[by]
    rows = rows_of(bytes_of(world.finance, kind, {by: key, "bucket": "used"}))
    assert sum(Decimal(row["amount" if kind == "statement" else "charged"]) for row in rows) == 100


def test_a_filtered_statement_line_has_the_hours_of_the_selected_charges(
    world: World, charged: Workload
) -> None:
    [row] = rows_of(bytes_of(world.finance, "statement", {"workload": charged.pk}))
    assert (Decimal(row["gpu_hours"]), row["team"], row["state"]) == (40, "Vision", "provisional")
    months.close_month(actor=world.finance, month=JANUARY, now=AFTER)
    Team.with_removed.filter(pk=world.vision.team.pk).update(name="Renamed")
    [closed] = rows_of(bytes_of(world.finance, "statement", {"workload": charged.pk}))
    assert closed == {**row, "state": "closed"}


def test_a_file_says_in_name_and_content_that_an_open_month_is_provisional(
    world: World, charged: Workload
) -> None:
    open_name = 'filename="gpupool-2026-01-lines-provisional.csv"'
    assert open_name in get(world.finance, kind="lines").headers["Content-Disposition"]
    assert {row["state"] for row in rows_of(bytes_of(world.finance, "lines"))} == {"provisional"}
    months.close_month(actor=world.finance, month=JANUARY, now=AFTER)
    closed_name = 'filename="gpupool-2026-01-lines.csv"'
    assert closed_name in get(world.finance, kind="lines").headers["Content-Disposition"]
    assert {row["state"] for row in rows_of(bytes_of(world.finance, "lines"))} == {"closed"}


@pytest.mark.parametrize("separator", first_cases(2, ["comma", "semicolon", "tab"]))
@pytest.mark.parametrize("kind", ["statement", "lines"])
def test_each_separator_gives_the_same_cells(
    world: World, charged: Workload, kind: str, separator: str
) -> None:
    plain = list(csv.reader(io.StringIO(bytes_of(world.finance, kind).decode())))
    sign = {"comma": ",", "semicolon": ";", "tab": "\t"}[separator]
    text = bytes_of(world.finance, kind, separator=separator).decode()
    found = list(csv.reader(io.StringIO(text), delimiter=sign))
    assert found[:-1] == plain[:-1] and len(found[-1]) == len(plain[-1])


def test_a_decimal_comma_changes_numbers_and_nothing_else(world: World, charged: Workload) -> None:
    plain = rows_of(bytes_of(world.finance, "lines"))
    text = bytes_of(world.finance, "lines", separator="semicolon", decimal="comma").decode()
    found = list(csv.DictReader(io.StringIO(text), delimiter=";"))[:-1]
    numbers = {"gpu_seconds", "price_per_gpu_hour", "price_factor", "charged", "cost", "share_percent"}
    for row, other in zip(plain, found, strict=True):
        assert other == {
            name: cell.replace(".", ",") if name in numbers else cell for name, cell in row.items()
        }


@pytest.mark.parametrize(
    ("query", "message"),
    first_cases(
        2,
        [
            ({}, "kind is &#x27;&#x27;; allowed: "),
            ({"kind": "docx"}, "kind is &#x27;docx&#x27;; allowed: "),
            (
                {"kind": "lines", "separator": "|"},
                "separator is &#x27;|&#x27;; allowed: comma, semicolon, tab",
            ),
            ({"kind": "lines", "decimal": "x"}, "decimal is &#x27;x&#x27;; allowed: comma, point"),
            ({"kind": "lines", "decimal": "comma"}, "which is also the separator"),
            ({"kind": "lines", "teem": "1"}, "&#x27;teem&#x27; is not a parameter of this page"),
            ({"kind": "lines", "team": "999999"}, "team is &#x27;999999&#x27;; allowed: "),
        ],
    ),
)
def test_a_wrong_parameter_is_refused_with_the_allowed_values(
    world: World, charged: Workload, query: dict[str, str], message: str
) -> None:
    answer = get(world.finance, **query)
    assert answer.status_code == 404 and message in answer.content.decode()


def test_the_menu_offers_separator_decimal_sign_and_the_digests_of_focus_files(
    world: World, charged: Workload
) -> None:
    client = Client()
    client.force_login(world.finance)
    page = client.get(reverse("chargeback"), {"month": MONTH, "bucket": "used"})
    menu = page.context["exports"]
    assert [choice["kind"] for choice in menu.csv_files] == ["statement", "lines"]
    assert menu.fields == [("bucket", "used")]
    given = {"kind": "lines", "separator": "semicolon", "decimal": "comma", **dict(menu.fields)}
    sent: Any = client.get(menu.action, given)
    assert b"".join(sent) == bytes_of(
        world.finance, "lines", {"bucket": "used"}, separator="semicolon", decimal="comma"
    )
    for select, allowed in zip(menu.selects, (SEPARATORS, DECIMAL_SIGNS), strict=True):
        assert list(select["choices"]) == list(allowed)
        assert f'name="{select["name"]}"' in page.content.decode()
    assert {each["label"] for each in menu.checksums} == {
        label
        for name, (label, _) in KIND_LABELS.items()
        if name.startswith("focus") and "invoice" not in name
    }
    digest: Any = client.get(menu.checksums[0]["url"])
    focus = bytes_of(world.finance, "focus-cost-and-usage", {"bucket": "used"})
    assert b"".join(digest).decode().split()[0] == hashlib.sha256(focus).hexdigest()


def test_the_menu_says_which_files_have_a_last_line(world: World, charged: Workload) -> None:
    """The sentence names the CSV files without a last line: those of FOCUS."""
    assert "FOCUS files have no such line" in CHECKED
    for name, kind in EXPORT_KINDS.items():
        if kind.extension == "csv":
            last = bytes_of(world.finance, name).decode().splitlines()[-1]
            assert last.startswith("# rows: ") == (not name.startswith("focus")), name


def test_a_team_that_the_viewer_may_not_see_is_refused_like_one_that_does_not_exist(
    world: World, charged: Workload
) -> None:
    answer = get(world.people["other team"], kind="lines", team=str(world.vision.team.pk))
    assert answer.status_code == 404


def rename_everything(world: World) -> None:
    """Change all names, prices, cost centres and the currency after the close of January."""
    for rows in (Team.with_removed, Project.objects, Pool.with_removed):
        for row in rows.all():
            rows.filter(pk=row.pk).update(name=f"=Renamed {row.pk}")
    Workload.objects.update(name="=renamed")
    for user in User.objects.all():
        User.objects.filter(pk=user.pk).update(first_name="Renamed")
    Organisation.objects.update(name="Renamed")
    billing_currency("CHF", date(2027, 1, 1))
    CostCentre.objects.create(code="CC-vision", name="=Renamed", created_at=AFTER)
    for share in CostCentreShare.objects.filter(project__isnull=False):
        CostCentreShare.objects.create(
            project=share.project, code="CC-new", valid_from=AFTER, created_at=AFTER
        )
    Price.objects.create(
        model=H100, cost_per_gpu_hour=9, price_per_gpu_hour=9, valid_from=AFTER, created_at=AFTER
    )


def test_the_files_of_a_closed_month_keep_their_bytes_whatever_changes_later(
    world: World, charged: Workload
) -> None:
    months.close_month(actor=world.finance, month=JANUARY, now=AFTER)
    before = digests_of_files(world.finance)
    assert list(before) == list(EXPORT_KINDS)
    rename_everything(world)
    # A late fact: the host was silent for an hour in January.
    host_state(world.hosts["alpha"], START + timedelta(days=3, hours=2), lease="silent")
    host_state(world.hosts["alpha"], START + timedelta(days=3, hours=3))
    charge_all_gpus(AFTER.replace(day=12))
    assert Charge.objects.filter(month="2026-02-01", corrects__isnull=False).exists()
    assert digests_of_files(world.finance) == before


def digests_of_files(viewer: User) -> dict[str, str]:
    """Return the SHA-256 digest of January's file of each kind."""
    return {
        name: hashlib.sha256(
            bytes_of(viewer, name, {"cost_centre": "CC-vision"} if kind.one_cost_centre else {})
        ).hexdigest()
        for name, kind in EXPORT_KINDS.items()
    }


def test_a_month_of_digest_format_1_keeps_the_file_whose_digest_it_stores(
    world: World, charged: Workload
) -> None:
    months.close_month(actor=world.finance, month=JANUARY, now=AFTER)
    statement = Statement.objects.get(month=JANUARY)
    change_in_place(statement, digest_format=1)
    statement.refresh_from_db()
    file = bytes_of(world.finance, "statement")
    assert hashlib.sha256(file).hexdigest() == digest_of(statement)
