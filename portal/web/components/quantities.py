"""Format quantities as text: durations, money, shares, data sizes and GPU counts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal

from telemetry.core.currencies import decimals_of

UNKNOWN_TEXT = "unknown"
CURRENCY_SIGNS = {"EUR": "€", "USD": "$", "GBP": "£"}


def short_duration(value: timedelta | int | float | Decimal | None) -> str:
    """Format a timedelta or a number of seconds: ``40 s``, ``26 min``, ``3 h 14 min`` or ``2 d 4 h``.

    None gives "unknown".
    """
    if value is None:
        return UNKNOWN_TEXT
    seconds = int(value.total_seconds() if isinstance(value, timedelta) else value)
    sign, seconds = ("−", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 60:
        return f"{sign}{seconds} s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 60:
        return f"{sign}{minutes} min"
    if days < 2:
        rest = minutes % 60
        return f"{sign}{hours} h" + (f" {rest:02d} min" if rest else "")
    rest = hours % 24
    return f"{sign}{days} d" + (f" {rest} h" if rest else "")


def money(amount: Decimal | int | None, currency: str = "") -> str:
    """Format an exact amount with its currency: ``€1,204.80``, ``CHF 12.00``, ``JPY 1,205``.

    The text has at least the decimals of the currency. This function never rounds: the caller rounds with
    ``round_amount``.
    """
    if amount is None:
        return UNKNOWN_TEXT
    sign, digits = _sign_and_digits(Decimal(amount), currency)
    symbol = CURRENCY_SIGNS.get(currency)
    if symbol:
        return f"{sign}{symbol}{digits}"
    return f"{sign}{currency} {digits}" if currency else f"{sign}{digits}"


def money_sums(amounts: Mapping[str, Decimal]) -> str:
    """Format amounts by currency: ``€12.00``, or ``€12.00 + JPY 350``. Two currencies are never added."""
    return " + ".join(money(value, currency) for currency, value in sorted(amounts.items()))


def amount(value: Decimal | int | None, currency: str) -> str:
    """Format an exact amount without its currency, where a heading names the currency: ``1,204.80``."""
    return UNKNOWN_TEXT if value is None else "".join(_sign_and_digits(Decimal(value), currency))


def _sign_and_digits(value: Decimal, currency: str) -> tuple[str, str]:
    """Return the sign and the digits of an amount, with at least the decimals of its currency."""
    size = abs(value).normalize()
    exponent = size.as_tuple().exponent
    decimals = max(decimals_of(currency), -exponent if isinstance(exponent, int) else 0)
    return "−" if value < 0 else "", f"{size:,.{decimals}f}"


def measured(value: Decimal | None, unit: str) -> str:
    """Format a budget amount: ``€1,204.80`` in a currency, ``1,205 GPU-h`` or ``38.5 GPU-h`` in
    ``gpu_hours``."""
    if unit != "gpu_hours" or value is None:
        return money(value, unit)
    return f"{grouped(value, 1 if abs(value) < 100 else 0)} GPU-h"


def percent(share: float | Decimal | None, decimals: int = 0) -> str:
    """Format a share as ``71 %`` (1 is 100 %). None gives "unknown"."""
    return UNKNOWN_TEXT if share is None else f"{float(share) * 100:.{decimals}f} %"


def grouped(number: float | Decimal | None, decimals: int = 0) -> str:
    """Format a number with thousands separators: ``380,928``. None gives "unknown"."""
    return UNKNOWN_TEXT if number is None else f"{number:,.{decimals}f}"


def data_size(size: float | None) -> str:
    """Format a number of bytes as ``4.2 GB``. A GB is 1000 MB. None gives "unknown"."""
    if size is None:
        return UNKNOWN_TEXT
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    step = 0
    while abs(size) >= 1000 ** (step + 1) and step < len(units) - 1:
        step += 1
    amount, unit = size / 1000**step, units[step]
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def gpu_model(model: str) -> str:
    """Format a GPU model for people: ``H100-80GB`` becomes ``H100 80GB``."""
    return str(model).replace("-", " ")


def gpus(count: int | None, model: str = "") -> str:
    """Format a GPU count: ``2 × H100 80GB``, or ``2 GPUs`` without a model. None gives "unknown"."""
    if count is None:
        return UNKNOWN_TEXT
    if model:
        return f"{count} × {gpu_model(model)}"
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
