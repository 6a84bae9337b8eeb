"""Render the page of data volumes: home folders, shared data, and software environments of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.db.models import F, Max, QuerySet, Sum
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import Membership, User
from portal.reads.fleet import volumes as reads
from portal.web.components.quantities import data_size, grouped
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.csv_export import MAX_CSV_ROWS, csv_response, timed_file_name
from portal.web.page.pagination import paginate
from scheduler.models import Storage, Volume

# Of a longer list of hosts, the page names this many and counts the others. A tooltip names all hosts.
MAX_NAMED_HOSTS = 3
LOW_FREE_SHARE = 0.1  # a storage with a smaller free share shows a warning
ISOLATION_LABELS = {"bubblewrap": "sandbox", "plain": "no sandbox"}
# Values of `?sort=`, each with its column.
HOME_SORT_COLUMNS = {
    "name": "name",
    "size": "size_bytes",
    "files": "files",
    "changed": "changed_at",
    "measured": "measured_at",
}


class HomeFilterForm(forms.Form):
    find = forms.CharField(required=False, max_length=100, label="Person")

    def apply(self, rows: QuerySet[Volume]) -> QuerySet[Volume]:
        """Return the rows that match the filter."""
        self.is_valid()
        words = self.cleaned_data.get("find")
        return rows.filter(name__icontains=words) if words else rows


@sign_in_required
def volumes(request: HttpRequest) -> HttpResponseBase:
    """Render homes, shared data and environments.

    ``?find=`` and ``?sort=`` apply to the homes. ``?format=csv`` downloads the homes as CSV.
    """
    user, now = current_user(request), timezone.now()
    visible = reads.visible_homes(user)
    filters = HomeFilterForm(request.GET)
    rows = _sort_homes(filters.apply(visible), request.GET.get("sort", ""))
    if request.GET.get("format") == "csv":
        return _homes_csv(user, rows, now)
    page = paginate(request, rows)
    hosts = list(reads.joined_hosts(user))
    totals = visible.aggregate(size=Sum("size_bytes"), looked=Max("storage__listed_at"))
    sees_others = policy.sees_all_teams(user) or policy.my_team_ids(user, Membership.Role.LEAD).exists()
    context = {
        "filters": filters,
        "page": page,
        "homes": [_home_row(home, user) for home in reads.home_details(user, list(page.object_list))],
        "sees_others": sees_others,
        "sees_all": policy.sees_all_teams(user),
        "filtered": bool(request.GET.get("find")),
        "looked": totals["looked"],
        "total": totals["size"],
        "storages": [_storage_row(storage) for storage in reads.home_storages(user)],
        "environments": [_environment_row(environment) for environment in reads.environments_of_hosts(hosts)],
        "shared": [
            {"path": shared["path"], "hosts": _host_names(shared["hosts"])}
            for shared in reads.shared_paths(hosts)
        ],
        "may_change": policy.may(user, "host.change"),
        "now": now,
    }
    return render(request, "work/volumes.html", context)


def _sort_homes(rows: QuerySet[Volume], sort: str) -> QuerySet[Volume]:
    """Sort homes by ``sort``, a key of HOME_SORT_COLUMNS. A ``-`` before the key gives descending order.

    Unknown values come last. Without a valid key, the order does not change.
    """
    down, column = sort.startswith("-"), HOME_SORT_COLUMNS.get(sort.removeprefix("-"))
    if column is None:
        return rows
    order = F(column).desc(nulls_last=True) if down else F(column).asc(nulls_last=True)
    return rows.order_by(order, "name", "pk")


def _home_row(home: reads.HomeVolume, user: User) -> dict[str, Any]:
    volume = home.volume
    find = urlencode({"show": "running", "find": volume.person})
    return {
        "volume": volume,
        "mine": volume.person == user.get_username(),
        "owner": home.owner,
        "full_name": home.owner.get_full_name() if home.owner else "",
        "teams": home.teams,
        "hosts": _host_names(home.hosts),
        "limit": data_size(volume.limit_bytes) if volume.limit_bytes else "",
        "size": _lower_bound_text(volume, data_size(volume.size_bytes)),
        "files": _lower_bound_text(volume, "unknown" if volume.files is None else grouped(volume.files)),
        "workloads": home.workloads,
        "workloads_url": f"{reverse('queue')}?{find}",
    }


def _lower_bound_text(volume: Volume, text: str) -> str:
    return f"over {text}" if volume.size_bytes is not None and not volume.size_complete else text


def _host_names(names: Sequence[str]) -> dict[str, Any]:
    """Return what the page shows of a list of hosts.

    ``names`` contains the first hosts, ``more`` is the number of the others, and ``all`` contains every host.
    A single other host is named, not counted.
    """
    few = names if len(names) <= MAX_NAMED_HOSTS + 1 else names[:MAX_NAMED_HOSTS]
    return {"names": ", ".join(few), "more": len(names) - len(few), "all": ", ".join(names)}


def _storage_row(row: dict[str, Any]) -> dict[str, Any]:
    storage: Storage = row["storage"]
    known = storage.total_bytes is not None and storage.free_bytes is not None and storage.total_bytes > 0
    total, free = storage.total_bytes or 0, storage.free_bytes or 0
    return {
        "hosts": _host_names(row["hosts"]),
        "known": known,
        "total": total,
        "used": total - free,
        "free": free,
        "narrow": known and free < LOW_FREE_SHARE * total,
        "left_out": storage.left_out,
        "listed_at": storage.listed_at,
    }


def _environment_row(environment: reads.HostEnvironment) -> dict[str, Any]:
    packages = dict(environment.packages)
    lab = packages.pop("jupyterlab", "")
    return {
        "python": environment.python,
        "lab": lab,
        "packages": [{"name": name, "version": version} for name, version in packages.items()],
        "isolation": ISOLATION_LABELS.get(environment.isolation, environment.isolation or "unknown"),
        "sandboxed": environment.isolation != "plain",
        "hosts": _host_names(environment.hosts),
    }


def _homes_csv(user: User, rows: QuerySet[Volume], now: datetime) -> HttpResponseBase:
    head = [
        "home",
        "hosts",
        "size_bytes",
        "size_complete",
        "files",
        "running_workloads",
        "changed",
        "measured",
        "limit_bytes",
    ]
    cells = (
        [
            home.volume.name,
            " ".join(home.hosts),
            home.volume.size_bytes,
            home.volume.size_complete if home.volume.size_bytes is not None else None,
            home.volume.files,
            home.workloads,
            home.volume.changed_at,
            home.volume.measured_at,
            home.volume.limit_bytes,
        ]
        for home in reads.home_details(user, list(rows[:MAX_CSV_ROWS]))
    )
    return csv_response(timed_file_name("volumes", now), head, cells)
