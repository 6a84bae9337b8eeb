"""Split rows into pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from django.core.paginator import Page, Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest

ROWS_PER_PAGE = 25
PAGE_PARAMETER = "page"
Row = TypeVar("Row", bound=Model)


def paginate(
    request: HttpRequest, rows: QuerySet[Row] | Sequence[Any], per_page: int = ROWS_PER_PAGE
) -> Page[Any]:
    """Return the page that ``?page=`` names. An invalid number gives the first or the last page."""
    return Paginator(rows, per_page).get_page(request.GET.get(PAGE_PARAMETER))
