"""Lists of notebooks and jobs: filters and order in the address, pages made by the server, all rows as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django import forms
from django.core.paginator import Page, Paginator
from django.db.models import F, Model, QuerySet
from django.http import HttpRequest, StreamingHttpResponse

from portal.models import User
from portal.reads.work.workload_details import filter_by_text
from portal.wording import state_labels
from scheduler.models import Workload
from scheduler.state.states import WorkloadState
from telemetry.money.statements import csv_safe_text

ROWS_PER_PAGE = 25
MAX_CSV_ROWS = 50_000
Row = TypeVar("Row", bound=Model)

# Word of the address: the columns it sorts by. Each order ends in the id.
SORT_COLUMNS: dict[str, tuple[str, ...]] = {
    "name": ("name",),
    "team": ("project__team__name", "project__name"),
    "owner": ("owner__username",),
    "state": ("state", "outcome"),
    "gpus": ("units",),
    "submitted": ("submitted_at",),
    "started": ("started_at",),
    "ended": ("ended_at",),
}
STATE_FILTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "open": ("Not ended", {"state__in": [s.value for s in WorkloadState if s != WorkloadState.ENDED]}),
    "running": ("Running", {"state__in": [WorkloadState.RUNNING, WorkloadState.NOTICE]}),
    "queued": ("Waiting", {"state": WorkloadState.QUEUED}),
    "ended": ("Ended", {"state": WorkloadState.ENDED}),
    "failed": (
        "Failed",
        {
            "state": WorkloadState.ENDED,
            "outcome__in": [code for code, (_, _, tone) in state_labels.OUTCOMES.items() if tone == "failed"],
        },
    ),
}


class WorkloadFilterForm(forms.Form):
    find = forms.CharField(required=False, max_length=100, label="Name, person, project or team")
    state = forms.ChoiceField(
        required=False,
        label="State",
        choices=[("", "Any state"), *((k, v[0]) for k, v in STATE_FILTERS.items())],
    )
    mine = forms.ChoiceField(required=False, label="Whose", choices=[("", "Everybody's"), ("1", "Mine")])

    def apply(self, rows: QuerySet[Workload], user: User) -> QuerySet[Workload]:
        """``rows`` that the filters let through; a filter that makes no sense is shown as an error and left out."""
        self.is_valid()
        chosen = self.cleaned_data
        if chosen.get("find"):
            rows = filter_by_text(rows, chosen["find"])
        if chosen.get("state"):
            rows = rows.filter(**STATE_FILTERS[chosen["state"]][1])
        if chosen.get("mine"):
            rows = rows.filter(owner=user)
        return rows


def sort_workloads(rows: QuerySet[Workload], sort: str) -> QuerySet[Workload]:
    """By a word of SORTS, ``-`` before it for downwards; else the newest first."""
    down, word = sort.startswith("-"), sort.removeprefix("-")
    columns = SORT_COLUMNS.get(word)
    if columns is None:
        return rows.order_by("-submitted_at", "-pk")
    turned = [F(c).desc(nulls_last=True) if down else F(c).asc(nulls_last=True) for c in columns]
    return rows.order_by(*turned, "-pk" if down else "pk")


def paginate(
    request: HttpRequest, rows: QuerySet[Row] | Sequence[Any], per_page: int = ROWS_PER_PAGE
) -> Page[Any]:
    """The page that ``?page=`` names; a number that is none, or beyond the end, is brought into range."""
    return Paginator(rows, per_page).get_page(request.GET.get("page"))


def csv_response(
    name: str, head: Sequence[str], rows: Iterable[Sequence[Any]], now: datetime
) -> StreamingHttpResponse:
    """A CSV file, sent as it is made. A cell that a spreadsheet would take for a formula is quoted with an apostrophe."""
    writer = csv.writer(_PassThroughFile())

    def lines() -> Iterator[str]:
        yield writer.writerow(head)
        for row in rows:
            yield writer.writerow([_csv_cell(value) for value in row])

    answer = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    answer.headers["Content-Disposition"] = f'attachment; filename="{name}-{now:%Y%m%d-%H%M}.csv"'
    return answer


def _csv_cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return csv_safe_text(value)
    return "" if value is None else value


class _PassThroughFile:
    """A file that hands back what is written to it."""

    def write(self, text: str) -> str:
        return text


CSV_COLUMNS: Mapping[str, Callable[[Workload], Any]] = {
    "id": lambda w: w.public_id,
    "name": lambda w: w.name,
    "kind": lambda w: w.kind,
    "type": lambda w: w.type,
    "team": lambda w: w.project.team.name,
    "project": lambda w: w.project.name,
    "owner": lambda w: w.owner.get_username(),
    "pool": lambda w: w.pool.name,
    "units": lambda w: w.units,
    "hosts": lambda w: w.hosts,
    "models": lambda w: " or ".join(w.models_wanted),
    "profile": lambda w: w.profile,
    "state": lambda w: w.state,
    "outcome": lambda w: w.outcome,
    "attempts": lambda w: w.attempt,
    "submitted": lambda w: w.submitted_at,
    "started": lambda w: w.started_at,
    "ended": lambda w: w.ended_at,
    "max_runtime_seconds": lambda w: w.max_runtime_seconds,
}


def workloads_csv(name: str, rows: QuerySet[Workload], now: datetime) -> StreamingHttpResponse:
    """The list as CSV, every row of it up to 50,000."""
    cells = (
        [read(w) for read in CSV_COLUMNS.values()] for w in rows[:MAX_CSV_ROWS].iterator(chunk_size=1000)
    )
    return csv_response(name, list(CSV_COLUMNS), cells, now)
