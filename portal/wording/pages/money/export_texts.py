"""Texts about exports of charges."""

from __future__ import annotations

from datetime import date

# Label of each kind of export, with a short description, in the order of the menu.
KIND_LABELS = {
    "statement": ("CSV of statement lines", "to the cent"),
    "lines": ("CSV of charge lines", "six decimals"),
    "xlsx": ("XLSX", "a sheet for each level"),
    "pdf": ("PDF of the cost centre", "its statement"),
    "pdf-zip": ("PDF for each cost centre", "ZIP"),
    "focus-cost-and-usage": ("FOCUS 1.4 CostAndUsage, CSV", "a row for each charge line"),
    "focus-cost-and-usage-parquet": ("FOCUS 1.4 CostAndUsage, Parquet", "the same rows with types"),
    "focus-invoice-detail": ("FOCUS 1.4 InvoiceDetail, CSV", "a row for each statement line"),
    "focus-invoice-detail-parquet": ("FOCUS 1.4 InvoiceDetail, Parquet", "the same rows with types"),
    "focus-billing-period": ("FOCUS 1.4 BillingPeriod, CSV", "the month, open or closed"),
    "focus-billing-period-parquet": ("FOCUS 1.4 BillingPeriod, Parquet", "the same row with types"),
    "focus-1.2-cost-and-usage": ("FOCUS 1.2 CostAndUsage, CSV", "for programs without 1.4"),
    "focus-1.2-cost-and-usage-parquet": ("FOCUS 1.2 CostAndUsage, Parquet", "the same rows with types"),
}
CHECKED = (
    "The last line of a CSV file has its row count and its SHA-256 digest. FOCUS files have no such line; "
    "their digest is a file of its own."
)
SEPARATOR_LABEL = "Separator"
DECIMAL_LABEL = "Decimal sign"
# Values of the options with their labels.
SEPARATORS = {"comma": "comma", "semicolon": "semicolon", "tab": "tab"}
DECIMAL_SIGNS = {"point": "point", "comma": "comma"}
PROVISIONAL = "provisional"


def rows_text(count: int | None, most: int) -> str:
    """Return the number of rows, such as "2,847 rows" or "more than 20,000 rows".

    If the charge lines are not counted, return what a row is.
    """
    if count is None:
        return "a row for each charge line"
    if count > most:
        return f"more than {most:,} rows"
    return "1 row" if count == 1 else f"{count:,} rows"


def files_text(count: int) -> str:
    """Return the number of files of an archive, such as "6 files, ZIP"."""
    return "1 file, ZIP" if count == 1 else f"{count:,} files, ZIP"


def in_currency(note: str, currency: str) -> str:
    """Return a note with its currency, such as "its statement in JPY"; the note alone without a currency."""
    return f"{note} in {currency}" if currency else note


def menu_title(month: date, is_closed: bool) -> str:
    """Return the title of the menu, such as "November 2026 so far, with the filters of this page"."""
    so_far = "" if is_closed else " so far"
    return f"{month:%B %Y}{so_far}, with the filters of this page"


DIALECT_KINDS = "only with kind {kinds}"
DIALECT_WITHOUT_CSV = "only with format=csv"
DECIMAL_IS_SEPARATOR = "decimal is 'comma', which is also the separator; allowed: separator semicolon or tab."
NO_FILTER = "{field} is a filter; allowed: no filters, because {kind} contains all charges."
COST_CENTRE_MISSING = "{field} is missing; allowed: the code of the cost centre whose {kind} you want."
NO_STATEMENT = "{field} is {given!a}; allowed: a cost centre that is charged in {month:%Y-%m}."
CURRENCY_MISSING = "currency is missing; allowed: {allowed}, because {code} has a statement in each."
NO_CURRENCY = "currency is {given}; allowed: no currency, because {kind} contains every currency."
SUM_CHECK = "lines and corrections add up to the total"
