"""Filter, sort and export lists of notebooks and jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.db.models import Case, F, QuerySet, When
from django.http import StreamingHttpResponse

from portal.models import User
from portal.reads.work.workload_details import filter_by_text
from portal.web.page.csv_export import MAX_CSV_ROWS, csv_response, timed_file_name
from portal.wording import state_labels
from scheduler.models import Workload
from scheduler.state.states import WorkloadState

# Values of `?sort=`, each with its columns. The primary key is added, so that each order is unique.
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


class WorkloadFilterForm(forms.Form):
    find = forms.CharField(required=False, max_length=100, label="Name, person, project or team")
    state = forms.ChoiceField(
        required=False,
        label="State",
        choices=[("", "Any state"), *((k, v[0]) for k, v in STATE_FILTERS.items())],
    )
    mine = forms.ChoiceField(required=False, label="Whose", choices=[("", "Everybody's"), ("1", "Mine")])

    def apply(self, rows: QuerySet[Workload], user: User) -> QuerySet[Workload]:
        """Return the rows that match the filters. Invalid filters show an error and are ignored."""
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
    """Sort workloads by ``sort``, a key of SORT_COLUMNS. A ``-`` before the key gives descending order.

    Without a valid key, workloads that hold GPUs come first, then those that wait, then those that have
    ended; the newest first, and of the ended ones the last end first.
    """
    down, word = sort.startswith("-"), sort.removeprefix("-")
    columns = SORT_COLUMNS.get(word)
    if columns is None:
        waits = Case(When(state=WorkloadState.QUEUED, then=1), default=0)
        return rows.order_by(F("ended_at").desc(nulls_first=True), waits, "-submitted_at", "-pk")
    ordering = [F(c).desc(nulls_last=True) if down else F(c).asc(nulls_last=True) for c in columns]
    return rows.order_by(*ordering, "-pk" if down else "pk")


def workloads_csv(name: str, rows: QuerySet[Workload], now: datetime) -> StreamingHttpResponse:
    """Return the list as a CSV download with at most 50,000 rows."""
    cells = (
        [read(w) for read in CSV_COLUMNS.values()] for w in rows[:MAX_CSV_ROWS].iterator(chunk_size=1000)
    )
    return csv_response(timed_file_name(name, now), list(CSV_COLUMNS), cells)
