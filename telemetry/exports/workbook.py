"""Write the charges of a month as a workbook (XLSX) with a sheet for each level.

Texts are written as strings, so that no name is run as a formula. Totals are formulas with stored results,
for programs that do not calculate. XlsxWriter writes rows to disk, so a workbook of a million lines needs
little memory.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from xlsxwriter import Workbook
from xlsxwriter.format import Format
from xlsxwriter.utility import xl_col_to_name, xl_rowcol_to_cell
from xlsxwriter.worksheet import Worksheet

from telemetry.core.amounts import ZERO
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.core.currencies import decimals_of
from telemetry.exports.export_model import ExportOptions, ExportScope, month_state
from telemetry.exports.export_rows import export_adjustments, export_charges, export_entries
from telemetry.exports.row_sheet import Column, RowSheet, RowWriter, plain_text
from telemetry.models import BillingMode
from telemetry.money.billing_months import month_bounds
from telemetry.money.statement_export import csv_columns
from telemetry.money.statement_lines import StatementEntry
from telemetry.reads.chargeback import CHARGE_DIMENSIONS, filter_text, group_names
from telemetry.reads.corrections import correction_blocks

PART_BYTES = 1 << 18
MAX_SHEET_LINES = 1_000_000  # the format allows 1,048,576 rows
SUMMARY_SHEET, LINES_SHEET, CHARGES_SHEET = "Summary", "Statement lines", "Charge lines"
NUMBER_FORMATS = {
    "text": "",
    "exact": "#,##0.000000",
    "factor": "0.00######",
    "hours": "#,##0.000",
    "share": "0.0 %",
    "time": "yyyy-mm-dd hh:mm:ss",
    "count": "0",
}
OPTIONS = {
    "constant_memory": True,
    "strings_to_formulas": False,
    "strings_to_numbers": False,
    "strings_to_urls": False,
}

NOT_INVOICED = 6  # the place of the last column of the summary
SUMMARY_COLUMNS = (
    Column("cost_centre", "text", 30),
    Column("gpu_hours", "hours"),
    Column("charged", "money"),
    Column("corrections", "money"),
    Column("total", "money"),
    Column("currency", "text"),
    Column("not_invoiced", "money"),  # only in files with the billing mode of each line
)
ENTRY_COLUMNS = (
    Column("cost_centre", "text", 18),
    Column("pool", "text", 18),
    Column("team", "text", 24),
    Column("project", "text", 24),
    Column("workload_type", "text"),
    Column("model", "text", 18),
    Column("bucket", "text", 18),
    Column("billing_mode", "text"),
    Column("corrected_month", "month"),
    Column("gpu_hours", "hours"),
    Column("covered_share", "share"),
    Column("used_share", "share"),
    Column("amount", "money"),
    Column("cost", "money"),
    Column("currency", "text"),
)
CHARGE_COLUMNS = (
    Column("id", "count", 12),
    Column("start", "time", 20),
    Column("end", "time", 20),
    Column("cost_centre", "text", 18),
    Column("share_percent", "exact"),
    Column("team", "text", 24),
    Column("project", "text", 24),
    Column("user", "text", 18),
    Column("workload", "text", 24),
    Column("bucket", "text", 18),
    Column("model", "text", 18),
    Column("corrected_month", "month"),
    Column("gpu_hours", "exact"),
    Column("price_per_gpu_hour", "exact"),
    Column("price_factor", "factor"),
    Column("charged", "exact"),
    Column("cost", "exact"),
    Column("currency", "text"),
)
CORRECTION_COLUMNS = (
    Column("cost_centre", "text", 18),
    Column("corrected_month", "month"),
    Column("cause", "text", 60),
    Column("gpu_hours", "hours"),
    Column("charged", "money"),
    Column("currency", "text"),
)
ADJUSTMENT_COLUMNS = (
    Column("number", "text", 16),
    Column("kind", "text"),
    Column("cost_centre", "text", 18),
    Column("reason", "text", 60),
    Column("credited_month", "month"),
    Column("author", "text", 18),
    Column("approver", "text", 18),
    Column("amount", "money"),
    Column("currency", "text"),
)
CHECK_COLUMNS = (Column("check", "text", 60), Column("result", "exact", 18))


def workbook_file(month: date, scope: ExportScope, options: ExportOptions) -> Iterator[bytes]:
    """Yield the workbook of a month. It is complete before its first bytes are sent."""
    with tempfile.TemporaryFile() as file:
        ChargeWorkbook(file, month, scope, options).write()
        file.seek(0)
        while part := file.read(PART_BYTES):
            yield part


@dataclass(frozen=True)
class LineRange:
    """The rows of the statement lines, for formulas on other sheets. Rows are counted from 0."""

    first: int
    last: int

    def column(self, number: int) -> str:
        """Return the reference of a column, such as ``'Statement lines'!$M$2:$M$18``."""
        name = xl_col_to_name(number, True)
        return f"'{LINES_SHEET}'!{name}${self.first + 1}:{name}${self.last + 1}"


class ChargeWorkbook:
    """The workbook of the charges of one month."""

    def __init__(self, file: Any, month: date, scope: ExportScope, options: ExportOptions) -> None:
        self.month, self.scope, self.options = month, scope, options
        self.state = month_state(month, options.currency)
        names = csv_columns(self.state.file_format)
        self.entry_columns = tuple(
            column
            for column in ENTRY_COLUMNS
            if column.label in names and (column.label != "cost" or scope.with_cost)
        )
        self.entries = sorted(export_entries(month, scope, self.state), key=_centre)
        self.line_range = LineRange(1, max(1, len(self.entries)))
        self.book = Workbook(file, OPTIONS)
        created = self.state.closed_at or month_bounds(month)[0]
        title = f"gpupool {month:%Y-%m} {self.state.label}"
        self.book.set_properties({"title": title, "created": created.replace(tzinfo=None)})
        # The month's currency first. Corrections of months with another currency have formats of their own.
        others = sorted({entry.currency for entry in self.entries} - {self.state.currency})
        self.currencies = [self.state.currency, *others]
        forms = NUMBER_FORMATS | {currency: _money_format(currency) for currency in self.currencies}
        self.formats = {name: self.book.add_format({"num_format": form}) for name, form in forms.items()}
        self.totals = {
            name: self.book.add_format({"bold": True, "top": 1, "num_format": form})
            for name, form in forms.items()
        }
        self._exact: dict[str, Decimal] = defaultdict(Decimal)  # sums of the charge lines by currency
        self.head = self.book.add_format({"bold": True, "bottom": 1, "text_wrap": True, "valign": "top"})
        self.bold = self.book.add_format({"bold": True})

    def write(self) -> None:
        """Write all sheets."""
        # Sheets are shown in the order in which they are added.
        sheets = {name: self._add_sheet(name) for name in (SUMMARY_SHEET, LINES_SHEET, CHARGES_SHEET)}
        corrections = self._add_sheet("Corrections")
        adjustments = export_adjustments(self.scope, self.state)
        # Older versions wrote no such sheet. Without adjustments it is left out, so that files of old months
        # stay equal.
        adjusted = self._add_sheet("Adjustments") if adjustments else None
        checks = self._add_sheet("Checks")
        totals = self._write_summary(sheets[SUMMARY_SHEET])
        self._write_entries(sheets[LINES_SHEET])
        count = self._write_charges(sheets[CHARGES_SHEET])
        self._write_corrections(corrections)
        if adjusted is not None:
            writer = self._row_writer(adjusted, ADJUSTMENT_COLUMNS)
            for row, adjustment in enumerate(adjustments, 1):
                writer.write(row, adjustment)
        self._write_checks(checks, totals, count)
        self.book.close()

    def _add_sheet(self, name: str) -> RowSheet:
        sheet = self.book.add_worksheet(name, RowSheet)
        assert isinstance(sheet, RowSheet)
        return sheet

    def _row_writer(self, sheet: RowSheet, columns: tuple[Column, ...]) -> RowWriter:
        """Write the heading of a sheet, and return the writer of its rows."""
        self._write_head(sheet, columns)
        return RowWriter(sheet, columns, self.formats)

    def _write_summary(self, sheet: Worksheet) -> dict[str, str]:
        """Write the totals of each cost centre and currency. Return the cell of the total by currency."""
        row = 0
        for name, value in self._facts():
            sheet.write_string(row, 0, name, self.bold)
            _write_text(sheet, row, 1, value)
            row += 1
        row += 1
        has_mode = any(column.label == "billing_mode" for column in self.entry_columns)
        columns = SUMMARY_COLUMNS if has_mode else SUMMARY_COLUMNS[:-1]
        self._write_head(sheet, columns, row)
        first = row + 1
        sums = self._sums_by_centre()
        for row, ((centre, currency), (held, own, corrected, shown)) in enumerate(sums.items(), first):
            _write_text(sheet, row, 0, centre)
            sheet.write_string(row, 5, currency)
            own_only = f'*({self._column("corrected_month")}="")'
            charged = f'*(({self._column("bucket")}="used")+({self._column("bucket")}="reserved_unused"))'
            self._write_sum(sheet, row, 1, "gpu_hours", own_only + charged, held, self.formats["hours"])
            money = self.formats[currency]
            self._write_sum(sheet, row, 2, "amount", own_only, own, money)
            corrections_only = f'*({self._column("corrected_month")}<>"")'
            self._write_sum(sheet, row, 3, "amount", corrections_only, corrected, money)
            both = f"={xl_rowcol_to_cell(row, 2)}+{xl_rowcol_to_cell(row, 3)}"
            sheet.write_formula(row, 4, both, money, float(own + corrected))
            if has_mode:
                showback_only = f'*({self._column("billing_mode")}="{BillingMode.SHOWBACK.value}")'
                self._write_sum(sheet, row, NOT_INVOICED, "amount", showback_only, shown, money)
        rows = (first, max(first, first + len(sums) - 1))
        totals = {}
        for row, currency in enumerate(self.currencies, first + len(sums)):
            parts = [
                (*values[:3], values[1] + values[2], ZERO, values[3])
                for key, values in sums.items()
                if key[1] == currency
            ]
            sheet.write_string(row, 0, "Total", self.totals["text"])
            sheet.write_string(row, 5, currency, self.totals["text"])
            for number, column in enumerate(columns):
                if column.form == "text":
                    continue
                result = sum((values[number - 1] for values in parts), ZERO)
                form = column.form if column.form != "money" else currency
                self._write_total(sheet, (row, number), form, rows, result, 5)
            totals[currency] = f"={SUMMARY_SHEET}!{xl_rowcol_to_cell(row, 4)}"
        return totals

    def _sums_by_centre(self) -> dict[tuple[str, str], list[Decimal]]:
        """Return GPU-hours, charges, corrections and the part that is not invoiced.

        The keys are pairs of a cost centre and a currency.
        """
        sums: dict[tuple[str, str], list[Decimal]] = {}
        for entry in self.entries:
            found = sums.setdefault((entry.cost_centre, entry.currency), [ZERO, ZERO, ZERO, ZERO])
            is_correction = entry.corrected_month is not None
            found[2 if is_correction else 1] += entry.amount
            if entry.showback:
                found[3] += entry.amount
            # The hours of a correction are not hours of the month.
            if entry.bucket in CHARGED_BUCKETS and not is_correction:
                found[0] += entry.gpu_hours
        return {key: found for key, found in sums.items() if any(found)}

    def _facts(self) -> list[tuple[str, str]]:
        statement = self.state.statement
        facts = [
            ("Month", f"{self.month:%Y-%m}"),
            ("State", self.state.label),
            ("Currency", self.state.currency),
            ("Charges of", self.scope.kind),
        ]
        for name, value in self.scope.where.items():
            is_key = name in CHARGE_DIMENSIONS and not isinstance(value, tuple)
            label = group_names(name, [value], self.month).get(value) if is_key else None
            facts.append((name, label or filter_text(name, value)))
        if self.state.closed_at is not None and statement is not None:
            facts += [
                ("Closed at", f"{self.state.closed_at:%Y-%m-%d %H:%M:%S} UTC"),
                ("SHA-256", statement.digest),
            ]
        return facts

    def _column(self, name: str) -> str:
        return self.line_range.column(next(n for n, c in enumerate(self.entry_columns) if c.label == name))

    def _write_sum(
        self,
        sheet: Worksheet,
        row: int,
        column: int,
        summed: str,
        condition: str,
        result: Decimal,
        form: Format,
    ) -> None:
        """Write a sum over the statement lines of the row's cost centre and currency.

        EXACT compares codes as they are. SUMIF would read a code such as ``<5`` as a condition.
        """
        centre = f"EXACT({self._column('cost_centre')},{xl_rowcol_to_cell(row, 0)})"
        currency = f"EXACT({self._column('currency')},{xl_rowcol_to_cell(row, 5)})"
        formula = f"=SUMPRODUCT({centre}*{currency}{condition}*{self._column(summed)})"
        sheet.write_formula(row, column, formula, form, float(result))

    def _write_total(
        self,
        sheet: Worksheet,
        cell: tuple[int, int],
        form: str,
        rows: tuple[int, int],
        result: Decimal,
        currency_column: int,
    ) -> None:
        """Write a formula into ``cell``: the sum of ``rows`` in its column.

        Only rows with the currency in the cell's own row count.
        """

        def cells(column: int) -> str:
            name = xl_col_to_name(column)
            return f"{name}{rows[0] + 1}:{name}{rows[1] + 1}"

        row, column = cell
        wanted = xl_rowcol_to_cell(row, currency_column)
        formula = f"=SUMPRODUCT(EXACT({cells(currency_column)},{wanted})*{cells(column)})"
        sheet.write_formula(row, column, formula, self.totals[form], float(result))

    def _write_head(self, sheet: Worksheet, columns: tuple[Column, ...], row: int = 0) -> None:
        for number, column in enumerate(columns):
            sheet.set_column(number, number, column.width)
        for number, column in enumerate(columns):
            sheet.write_string(row, number, column.label, self.head)
        sheet.freeze_panes(row + 1, 0)
        sheet.repeat_rows(row)

    def _write_entries(self, sheet: RowSheet) -> None:
        """Write the statement lines, by cost centre. The formulas of the summary refer to these rows."""
        columns = self.entry_columns
        writer, row = self._row_writer(sheet, columns), 0
        for row, entry in enumerate(self.entries, 1):
            writer.write(row, entry)
        if self.entries:
            sheet.autofilter(0, 0, row, len(columns) - 1)
        for total, currency in enumerate(self.currencies, row + 2):
            sheet.write_string(total, 0, "Total", self.totals["text"])
            sheet.write_string(total, len(columns) - 1, currency, self.totals["text"])
            for number, column in enumerate(columns):
                if column.form == "money":
                    result = self._sum(column.label, currency)
                    rows = (1, max(1, row))
                    self._write_total(sheet, (total, number), currency, rows, result, len(columns) - 1)

    def _sum(self, name: str, currency: str) -> Decimal:
        """Return the sum of ``amount`` or ``cost`` of the statement lines in a currency."""
        return sum((getattr(each, name) for each in self.entries if each.currency == currency), ZERO)

    def _write_charges(self, sheet: RowSheet) -> int:
        """Write the charge lines. Return their number."""
        columns = tuple(column for column in CHARGE_COLUMNS if column.label != "cost" or self.scope.with_cost)
        writer, row, count = self._row_writer(sheet, columns), 0, 0
        for line in export_charges(self.month, self.scope):
            if row == MAX_SHEET_LINES:
                sheet = self._add_sheet(f"{CHARGES_SHEET} {count // MAX_SHEET_LINES + 1}")
                writer, row = self._row_writer(sheet, columns), 0
            row += 1
            count += 1
            self._exact[line.currency or self.state.currency] += line.charged
            writer.write(row, line)
        return count

    def _write_corrections(self, sheet: Worksheet) -> None:
        """Write the corrections of closed months by cost centre, with the facts that caused them."""
        self._write_head(sheet, CORRECTION_COLUMNS)
        blocks = correction_blocks(self.month, self.scope.lines, self.scope.cells, **self.scope.where)
        for row, block in enumerate(blocks, 1):
            causes = "; ".join(self.options.cause_sentence(code, numbers) for code, numbers in block.causes)
            _write_text(sheet, row, 0, block.cost_centre)
            sheet.write_string(row, 1, f"{block.corrected_month:%Y-%m}")
            _write_text(sheet, row, 2, causes)
            sheet.write_number(row, 3, block.gpu_hours, self.formats["hours"])
            sheet.write_number(
                row, 4, float(block.charged), self.formats.get(block.currency, self.formats["exact"])
            )
            sheet.write_string(row, 5, block.currency)

    def _write_checks(self, sheet: Worksheet, totals: dict[str, str], count: int) -> None:
        """Write the sums that must agree, the numbers of lines, and the checks of the close."""
        self._write_head(sheet, CHECK_COLUMNS)
        row = 1
        for currency, total in totals.items():
            money, amount = self.formats[currency], float(self._sum("amount", currency))
            of_currency = f'EXACT({self._column("currency")},"{currency}")'
            lines = f"=SUMPRODUCT({of_currency}*{self._column('amount')})"
            for label, formula in ((SUMMARY_SHEET, total), (LINES_SHEET, lines)):
                sheet.write_string(row, 0, f"{label}, {currency}")
                sheet.write_formula(row, 1, formula, money, amount)
                row += 1
            sheet.write_string(row, 0, f"Difference, {currency}")
            sheet.write_formula(row, 1, f"=B{row - 1}-B{row}", money, 0)
            sheet.write_string(row + 1, 0, f"{CHARGES_SHEET}, exact, {currency}")
            sheet.write_number(row + 1, 1, float(self._exact[currency]), self.formats["exact"])
            row += 2
        for label, number in ((LINES_SHEET, len(self.entries)), (CHARGES_SHEET, count)):
            sheet.write_string(row, 0, f"{label}, rows")
            sheet.write_number(row, 1, number, self.formats["count"])
            row += 1
        row += 1
        statement = self.state.statement
        for check in statement.checks if self.state.is_closed and statement else []:
            _write_text(sheet, row, 0, check["check"])
            sheet.write_string(row, 1, "passed" if check["ok"] else "excused")
            row += 1


def _money_format(currency: str) -> str:
    """Return the number format of amounts in a currency."""
    decimals = decimals_of(currency)
    return f"#,##0.{'0' * decimals}" if decimals else "#,##0"


def _centre(entry: StatementEntry) -> tuple[str, bool]:
    """Return the sort key of a statement line: by cost centre, and its corrections after its other lines."""
    return entry.cost_centre, entry.corrected_month is not None


def _write_text(sheet: Worksheet, row: int, column: int, text: str) -> None:
    """Write a text as a string, never as a formula."""
    sheet.write_string(row, column, plain_text(text))
