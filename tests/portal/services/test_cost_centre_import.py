"""Test the import of cost centres and of splits from CSV files: one wrong line refuses the whole file."""

from __future__ import annotations

from decimal import Decimal

import pytest

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent
from portal.services.money.cost_centres import imports
from telemetry.cost_centres.splits import Payer, load_splits
from telemetry.models import CostCentre, CostCentreShare
from tests.documents import table_rows
from tests.seeds import first_cases
from tests.telemetry import rows
from tests.telemetry.rows import at
from tests.world import World

pytestmark = pytest.mark.django_db


def states(world: World, text: str) -> list[tuple[int, str]]:
    """Return (line, state) of each line that a preview shows."""
    report = imports.preview_import(actor=world.finance, text=text, now=world.now)
    return [(line.number, line.state) for line in report.lines]


def problem(world: World, text: str) -> str:
    """Return the only problem that a preview shows, and check that nothing is written."""
    report = imports.preview_import(actor=world.finance, text=text, now=world.now)
    [found] = [each for line in report.lines for each in line.problems]
    before = (CostCentre.objects.count(), CostCentreShare.objects.count())
    with pytest.raises(Invalid, match="Nothing is imported"):
        imports.import_cost_centres(actor=world.finance, text=text, now=world.now)
    assert (CostCentre.objects.count(), CostCentreShare.objects.count()) == before
    return found


def test_a_preview_writes_nothing_and_the_import_does_what_it_shows(world: World) -> None:
    rows.directory("CC-1", name="Imaging")
    rows.directory("CC-2", name="Climate")
    text = "code;name;postal_address\r\nCC-1;Imaging;\r\nCC-2;Weather;\r\n"
    text += 'CC-3;New;"Street 1\r\n10117 Berlin"\r\n'
    expected = [(2, "unchanged"), (3, "changed"), (4, "new")]
    assert states(world, text) == expected
    assert not CostCentre.objects.filter(code="CC-3").exists() and not AuditEvent.objects.exists()
    report = imports.import_cost_centres(actor=world.finance, text=text, now=world.now, via="cli")
    assert [(line.number, line.state) for line in report.lines] == expected
    assert CostCentre.objects.get(code="CC-3").postal_address == "Street 1\r\n10117 Berlin".replace("\r", "")
    assert set(AuditEvent.objects.values_list("verb", "via")) == {
        ("add_cost_centre", "cli"),
        ("change_cost_centre", "cli"),
    }
    assert states(world, text) == [(2, "unchanged"), (3, "unchanged"), (4, "unchanged")]


def test_the_documented_preview_is_that_of_the_import(world: World) -> None:
    rows.directory("CC-1", name="Imaging")
    rows.directory("CC-2", name="Climate")
    documented = table_rows("import")
    lines = [line.strip("`") for line, _ in documented]
    report = imports.preview_import(
        actor=world.finance, text="\r\n".join(["code;name", *lines, ""]), now=world.now
    )
    shown = ["wrong" if line.problems else line.state for line in report.lines]
    assert shown == [state for _, state in documented]


def test_the_splits_of_projects_and_pools_are_imported(world: World) -> None:
    rows.directory("CC-1", "CC-2")
    text = (
        "project,pool,code,percent,valid_from\n"
        "vision/vision-main,,CC-1,60,2026-03-01\n"
        "vision/vision-main,,CC-2,40,2026-03-01\n"
        ",vision-only,CC-1,,2026-03-01T00:00:00+00:00\n"
    )
    assert states(world, text) == [(2, "new"), (3, "new"), (4, "new")]
    imports.import_cost_centres(actor=world.finance, text=text, now=world.now)
    project = world.vision.project.pk
    split = load_splits([project]).at(Payer(project=project), at(0, day=1))
    assert [(share.code, share.percent) for share in split] == [("CC-1", Decimal(60)), ("CC-2", Decimal(40))]
    again = text.replace("60,", "50,").replace("40,", "50,")
    assert states(world, again) == [(2, "changed"), (3, "changed"), (4, "unchanged")]


MAIN = "vision/vision-main"
SHARES = f"project,code,percent,valid_from\n{MAIN}"
OTHER = "project,code,percent,valid_from\nvision/none"


@pytest.mark.parametrize(
    ("text", "message"),
    first_cases(
        4,
        [
            (
                "code,name\nCC-1,a\nCC-1,b\n",
                "code is 'CC-1', which line 2 has already; allowed: each code once.",
            ),
            ("code,name\n=1+1,a\n", "code is '=1+1'; allowed: 1 to 40 letters, digits"),
            ("code,name\nCC-9,a,b\n", "the line has 3 cells; allowed: 2, as the header has."),
            (f"code,name\nCC-9,{'x' * 121}\n", "name has 121 characters"),
            (
                OTHER + ",CC-1,100,2026-03-01\n",
                "project is 'vision/none'; allowed: a project as team/",
            ),
            (
                SHARES + ",CC-9,100,2026-03-01\n",
                "code is 'CC-9'; allowed: a cost centre of the",
            ),
            (
                SHARES + ",CC-1,90,2026-03-01\n",
                "shares sum to 90.00 %; allowed: exactly 100 %.",
            ),
            (SHARES + ",CC-1,33.333,2026-03-01\n", "percent of CC-1 is '33.333'; allowed:"),
            (
                SHARES + ",CC-1,100,1.3.2026\n",
                "valid_from is '1.3.2026'; allowed: a date such as",
            ),
            (
                SHARES + ",CC-1,100,2026-03-01T00:00\n",
                "valid_from is '2026-03-01T00:00'; allowed:",
            ),
            (
                SHARES + f",CC-1,50,2026-03-01\n{MAIN},CC-1,50,2026-03-01\n",
                "shares: CC-1 is given 2 times; allowed: each cost centre once.",
            ),
            (
                "pool,code,valid_from\nshared,CC-1,2026-03-01\n",
                "pool is 'shared'; allowed: a static pool, such as",
            ),
        ],
    ),
)
def test_a_wrong_line_is_named_and_refuses_the_whole_file(world: World, text: str, message: str) -> None:
    rows.directory("CC-1", "CC-2")
    assert problem(world, text).startswith(message)


def test_right_lines_of_a_file_with_a_wrong_line_are_not_written(world: World) -> None:
    text = "code,name\nCC-5,Fine\n-,Wrong\n"
    assert states(world, text) == [(2, "new"), (3, "wrong")]
    problem(world, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "csv: the header is ''; allowed: columns of code, name, postal_address, purchase_order, or of"),
        ("code,colour\nCC-1,red\n", "csv: the header is 'code, colour'; allowed:"),
        ("code,code\nCC-1,CC-2\n", "csv: the header is 'code, code'; allowed:"),
        ("project,code\nx,y\n", "csv: the header is 'project, code'; allowed:"),
        ("code\n", "csv has 0 lines; allowed: 1 to 2000."),
        ("code\n" + "CC-1\n" * 2001, "csv has 2001 lines; allowed: 1 to 2000."),
        ('code\n"CC-1\n', "csv can't be read: "),
        ("code\nCC\0\n", "csv is not a text of at most 500,000 characters"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(world: World, text: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        imports.preview_import(actor=world.finance, text=text, now=world.now)
    assert refused.value.fields["csv"].startswith(message)


def test_a_name_that_looks_like_a_formula_is_text_and_comes_back_from_an_export(world: World) -> None:
    imports.import_cost_centres(
        actor=world.finance, text="code,name\nCC-1,=1+1\nCC-2,'=1+1\nCC-3,'quoted\n", now=world.now
    )
    assert list(CostCentre.objects.order_by("code").values_list("name", flat=True)) == [
        "=1+1",
        "=1+1",
        "'quoted",
    ]


def test_only_finance_imports(world: World) -> None:
    for verb in (imports.preview_import, imports.import_cost_centres):
        with pytest.raises(NotAllowed, match="Only finance"):
            verb(actor=world.operator, text="code\nCC-1\n", now=world.now)
