"""Read the argument ``--month`` of the commands about statements."""

from __future__ import annotations

import argparse
from datetime import date


def month_argument(text: str) -> date:
    """Return the first day of the month ``text`` (YYYY-MM). Raises ArgumentTypeError for other texts."""
    try:
        return date.fromisoformat(f"{text}-01")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}; allowed: a month as YYYY-MM") from None
