"""Test that CSV files are streamed, that formulas are text, and that a cut-off file is detected."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from asgiref.sync import async_to_sync

from portal.web.page import csv_export
from portal.web.page.csv_export import complete_csv_response, csv_response
from telemetry.core.csv_text import FORMULA_STARTS, csv_line
from tests.architecture.sources import ROOT


def end_line_is_right(text: str) -> bool:
    """Check a file as docs/money.md describes it: its last line counts the rows and has the digest."""
    body, _, last = text.removesuffix("\r\n").rpartition("\r\n")
    body += "\r\n"
    rows = len(list(csv.reader(io.StringIO(body)))) - 1
    digest = hashlib.sha256(body.encode()).hexdigest()
    return last.split(",")[0] == f"# rows: {rows} sha256: {digest}"


@pytest.mark.parametrize("start", FORMULA_STARTS)
def test_a_text_that_looks_like_a_formula_stays_text(start: str) -> None:
    (cells,) = csv.reader(io.StringIO(csv_line([f"{start}SUM(A1)", "plain"])))
    assert cells == [f"'{start}SUM(A1)", "plain"]


def test_negative_amounts_and_small_decimals_stay_numbers() -> None:
    line = csv_line([Decimal("-22.39"), -3, -0.5, Decimal("0.000000"), None, True])
    assert line == "-22.39,-3,-0.5,0.000000,,True\r\n"


def test_times_are_written_in_iso_8601() -> None:
    assert csv_line([datetime(2026, 3, 2, 9, tzinfo=UTC)]) == "2026-03-02T09:00:00+00:00\r\n"


def test_a_complete_file_ends_with_its_row_count_and_digest() -> None:
    text = complete_csv_response("x.csv", ("a", "b"), [["1", "2"], ["new\nline", 'quote"']]).getvalue()
    assert end_line_is_right(text.decode())
    assert text.decode().splitlines()[-1].startswith("# rows: 2 sha256: ")


def test_the_last_line_has_as_many_cells_as_the_header() -> None:
    text = complete_csv_response("x.csv", ("a", "b", "c"), []).getvalue().decode()
    assert [len(line) for line in csv.reader(io.StringIO(text))] == [3, 3]


@pytest.mark.parametrize("cut", [1, 2, 40, 90, 150])
def test_a_file_that_is_cut_off_anywhere_is_detected(cut: int) -> None:
    text = complete_csv_response("x.csv", ("a", "b"), [[n, "text"] for n in range(10)]).getvalue().decode()
    assert end_line_is_right(text) and not end_line_is_right(text[:-cut].rsplit("\r\n", 1)[0] + "\r\n")


def test_a_changed_cell_is_detected() -> None:
    text = complete_csv_response("x.csv", ("a",), [["12.00"]]).getvalue().decode()
    assert not end_line_is_right(text.replace("12.00", "21.00"))


def test_a_failure_while_the_file_is_written_leaves_it_without_its_last_line() -> None:
    def rows() -> Iterator[list[str]]:
        yield ["1"]
        raise RuntimeError("the database is gone")

    written = b""
    with pytest.raises(RuntimeError):
        for part in complete_csv_response("x.csv", ("a",), rows()):
            written += part
    assert b"sha256" not in written


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_part_is_sent_before_the_last_rows_are_read(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_export, "LINES_PER_PART", 10)
    read: list[int] = []

    def rows() -> Iterator[list[int]]:
        for number in range(1000):
            read.append(number)
            yield [number]

    response = csv_response("x.csv", ("number",), rows())

    async def first_part() -> bytes:
        return await anext(aiter(response))

    part = async_to_sync(first_part)() if asynchronous else next(iter(response))
    assert part.startswith(b"number\r\n0\r\n")
    assert len(read) < 20


def test_all_parts_arrive_in_order_when_the_server_is_asynchronous() -> None:
    response = csv_response("x.csv", ("number",), ([number] for number in range(2000)))

    async def whole() -> bytes:
        return b"".join([part async for part in response])

    assert async_to_sync(whole)() == b"number\r\n" + b"".join(b"%d\r\n" % number for number in range(2000))


def test_the_example_of_the_documentation_is_what_the_code_writes() -> None:
    example = (ROOT / "docs" / "money.md").read_text().split("<!-- csv: ")[1].split("```")[1].strip()
    text = complete_csv_response("x.csv", ("team", "charged"), [["Vision", Decimal("100.00")]]).getvalue()
    assert text.decode().split() == example.split()
