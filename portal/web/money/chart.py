"""Define the data of one chart of the utilisation page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from portal.wording.chargeback.overview_texts import Finding
from portal.wording.pages.money import money_pages

MEDIAN_WAIT_LABEL, P95_WAIT_LABEL = money_pages.HALF_WAIT_LABEL, "19 of 20 wait at most"


@dataclass
class UtilisationChart:
    """A Plotly figure, and a table with the same numbers.

    ``more_table`` is a second table below it. ``choices`` are links that change what the chart shows.
    """

    title: str
    hint: str
    figure: dict[str, Any]
    columns: list[dict[str, Any]]
    rows: list[list[Any]]  # formatted for people
    height: int = 280
    empty: str = money_pages.NOTHING_IN_PERIOD
    finding: Finding | None = None
    opens: str = ""  # what a click opens
    width: str = "half"  # the class of its panel on a board
    more_table: dict[str, Any] | None = None
    choices: list[dict[str, Any]] = field(default_factory=list)

    @property
    def table(self) -> dict[str, Any]:
        """Return the table for components/table.html."""
        return {
            "caption": f"{self.title}, {self.hint}",
            "columns": self.columns,
            "rows": self.rows,
            "empty": self.empty,
        }


def csv_columns_of(first: str, *numeric: str) -> list[dict[str, Any]]:
    """Return the columns of a table: one text column, then numeric columns."""
    return [{"label": first}, *({"label": label, "numeric": True} for label in numeric)]
