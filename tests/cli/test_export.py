"""Test `gpupool export`: a file is stored only if it is complete."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.session import cli
from portal.models import User
from portal.reads.money.charge_filters import FILTERS
from portal.services.work import launch
from scheduler.models import Gpu
from telemetry.exports import csv_files
from tests.cli.conftest import Gpupool
from tests.portal.charged_january import charge_of
from tests.world import World

SignIn = Callable[[User], str]


@pytest.fixture
def charged_now(served_world: World, sign_in: SignIn) -> World:
    """Charge one hour in the present month, and sign its owner in."""
    member = served_world.vision.member
    work = launch.launch_notebook(
        actor=member,
        project=served_world.vision.project,
        pool=served_world.shared,
        now=served_world.now,
        name="=cmd",
    )
    charge_of(work, Gpu.objects.earliest("pk"))
    sign_in(member)
    return served_world


def export(gpupool: Gpupool, world: World, path: Path, *options: str) -> Any:
    month = f"{world.now:%Y-%m}"
    return gpupool("export", "--month", month, "--kind", "lines", "-o", str(path), *options)


def test_a_complete_file_is_stored_with_its_row_count_and_digest(
    gpupool: Gpupool, charged_now: World, tmp_path: Path
) -> None:
    path = tmp_path / "lines.csv"
    answer = export(gpupool, charged_now, path, "--separator", "semicolon", "--decimal", "comma")
    assert answer.code == 0, answer.err
    assert "1 rows, sha256 " in answer.out and path.read_text().splitlines()[1].count(";") > 10
    facts = json.loads(export(gpupool, charged_now, path, "--json").out)
    assert facts["rows"] == 1 and facts["bytes"] == path.stat().st_size
    workbook = gpupool(
        "export", "--month", f"{charged_now.now:%Y-%m}", "--kind", "xlsx", "-o", str(tmp_path / "x.xlsx")
    )
    assert workbook.code == 0, workbook.err


def test_the_command_has_each_filter_of_the_page(
    gpupool: Gpupool, charged_now: World, tmp_path: Path
) -> None:
    options = {str(option.name).removesuffix("_") for option in cli.commands["export"].params}
    assert options >= set(FILTERS)
    path = tmp_path / "lines.csv"
    for choice, rows in (
        (["--bucket", "used", "--corrected-month", "none"], 1),
        (["--type", "inference"], 0),
    ):
        answer = export(gpupool, charged_now, path, "--json", *choice)
        assert answer.code == 0, answer.err
        assert json.loads(answer.out)["rows"] == rows
    wrong = export(gpupool, charged_now, path, "--day", "2026-13-01")
    assert wrong.code == 1 and "day is '2026-13-01'; allowed: a day of the month" in wrong.err


@pytest.mark.parametrize("damage", ["cut off", "changed"])
def test_a_file_that_is_damaged_on_its_way_is_not_stored(
    gpupool: Gpupool, charged_now: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    whole = csv_files.with_end_line

    def damaged(lines: Iterator[str], columns: int, *more: Any) -> Iterator[str]:
        found = list(whole(lines, columns, *more))
        return iter(found[:-1] if damage == "cut off" else [found[0], found[1].replace("1", "2"), found[2]])

    monkeypatch.setattr(csv_files, "with_end_line", damaged)
    path = tmp_path / "lines.csv"
    path.write_text("kept")
    answer = export(gpupool, charged_now, path)
    assert answer.code == 5 and "not complete" in answer.err
    assert path.read_text() == "kept" and list(tmp_path.glob("*.part")) == []


def test_a_wrong_option_is_refused_with_the_allowed_values(
    gpupool: Gpupool, charged_now: World, tmp_path: Path
) -> None:
    answer = export(gpupool, charged_now, tmp_path / "x", "--decimal", "comma")
    assert answer.code == 1 and "allowed: separator semicolon or tab" in answer.err
    answer = export(gpupool, charged_now, tmp_path / "x", "--currency", "EUR")
    assert answer.code == 1 and "allowed: no currency, because lines contains" in answer.err
    month = f"{charged_now.now:%Y-%m}"
    wrong = gpupool("export", "--month", month, "--kind", "docx", "-o", str(tmp_path / "x"))
    assert wrong.code == 1 and "allowed: statement, lines, xlsx" in wrong.err
    assert not (tmp_path / "x").exists()
