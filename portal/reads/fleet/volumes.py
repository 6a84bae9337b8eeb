"""Read home folders (with their sizes), shared data, and the software environments of hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, Prefetch, Q, QuerySet

from portal import policy
from portal.models import Membership, User
from scheduler.models import Host, Run, Storage, Team, Volume
from scheduler.state.states import RunState

# States of a run in which its processes may have open files in the home.
VOLUME_USING_STATES = (RunState.STARTING, RunState.RUNNING, RunState.STOPPING)


@dataclass(frozen=True)
class HomeVolume:
    """One home volume. ``owner`` is None if no account has the volume's name.

    ``hosts`` are the names of visible hosts that have the volume. ``workloads`` is the number of visible
    workloads that use the volume now. ``teams`` are the owner's teams that the viewer may see.
    """

    volume: Volume
    hosts: list[str]
    workloads: int
    owner: User | None
    teams: list[Team] = field(default_factory=list)


@dataclass(frozen=True)
class HostEnvironment:
    """The software environment on some hosts. ``python`` is empty if the agents do not report a version."""

    python: str
    packages: dict[str, str]
    isolation: str
    hosts: list[str]


def visible_homes(viewer: policy.Viewer) -> QuerySet[Volume]:
    """Return the visible homes, sorted by name."""
    return policy.visible_volumes(viewer).select_related("storage").order_by("name", "pk")


def home_details(viewer: User, volumes: Sequence[Volume]) -> list[HomeVolume]:
    """Return the homes of one page with their details, in a fixed number of queries."""
    hosts = _hosts_by_storage(viewer, {volume.storage_id for volume in volumes})
    used = _used(viewer, volumes)
    owners = _owners(viewer, {volume.person for volume in volumes})
    found = []
    for volume in volumes:
        owner = owners.get(volume.person)
        teams = [membership.team for membership in owner.memberships.all()] if owner else []
        found.append(
            HomeVolume(
                volume,
                hosts[volume.storage_id],
                used.get((volume.person, volume.storage_id), 0),
                owner,
                teams,
            )
        )
    return found


def _hosts_by_storage(viewer: User, storages: Iterable[int]) -> dict[int, list[str]]:
    rows = policy.visible_hosts(viewer).filter(storage__in=list(storages)).order_by("name")
    found: dict[int, list[str]] = defaultdict(list)
    for storage, name in rows.values_list("storage_id", "name"):
        found[storage].append(name)
    return found


def _used(viewer: User, volumes: Sequence[Volume]) -> dict[tuple[str, int], int]:
    mine_or_visible = Q(workload__owner=viewer) | Q(workload__in=policy.visible_workloads(viewer))
    rows = (
        Run.objects.filter(mine_or_visible, state__in=VOLUME_USING_STATES)
        .filter(workload__owner__username__in={volume.person for volume in volumes})
        .filter(host__storage__in={volume.storage_id for volume in volumes})
        .values_list("workload__owner__username", "host__storage")
        .annotate(workloads=Count("workload", distinct=True))
    )
    return {(name, storage): count for name, storage, count in rows if storage is not None}


def _owners(viewer: User, names: set[str]) -> dict[str, User]:
    memberships = (
        Membership.objects.filter(team__in=policy.visible_teams(viewer))
        .select_related("team")
        .order_by("team__name")
    )
    rows = User.objects.filter(username__in=names).prefetch_related(
        Prefetch("memberships", queryset=memberships)
    )
    return {user.username: user for user in rows}


def home_storages(viewer: User) -> list[dict[str, Any]]:
    """Return the storages in which visible hosts keep homes. The storage with the most hosts comes first.

    Each entry has a ``storage`` and the names of its visible ``hosts``.
    """
    hosts = (
        policy.visible_hosts(viewer)
        .filter(storage__isnull=False)
        .order_by("name")
        .values_list("storage_id", "name")
    )
    names: dict[int, list[str]] = defaultdict(list)
    for storage, name in hosts:
        if storage is not None:
            names[storage].append(name)
    rows = Storage.objects.in_bulk(list(names))
    return [
        {"storage": rows[pk], "hosts": names[pk]}
        for pk in sorted(names, key=lambda each: (-len(names[each]), names[each]))
        if pk in rows
    ]


def joined_hosts(viewer: policy.Viewer) -> QuerySet[Host]:
    """Return the visible hosts whose agent has joined, with their pool."""
    return policy.visible_hosts(viewer).exclude(credential_hash="").select_related("pool").order_by("name")


def reported_environment(host: Host) -> dict[str, Any] | None:
    """Return the software environment that the host's agent reports; None without a report.

    Its keys are ``python`` (version), ``packages`` (versions by name) and ``exposed`` (paths).
    """
    found = (host.hardware.get("reported") or {}).get("environment")
    return dict(found) if found else None


def environments_of_hosts(rows: Iterable[Host]) -> list[HostEnvironment]:
    """Return the software environments with their hosts. The environment of the most hosts comes first.

    Hosts without a report come last; their ``python`` is empty.
    """
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for host in rows:
        environment = reported_environment(host)
        python, packages = (
            (environment["python"], tuple(environment["packages"].items())) if environment else ("", ())
        )
        groups[(python, packages, host.isolation)].append(host.name)
    found = [HostEnvironment(key[0], dict(key[1]), key[2], names) for key, names in groups.items()]
    return sorted(found, key=lambda each: (not each.python, -len(each.hosts), each.hosts))


def shared_paths(rows: Iterable[Host]) -> list[dict[str, Any]]:
    """Return the paths outside homes that agents expose to workloads.

    Each entry has a ``path`` and the names of the ``hosts`` that expose it.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for host in rows:
        for path in (reported_environment(host) or {}).get("exposed", []):
            found[path].append(host.name)
    return [{"path": path, "hosts": names} for path, names in sorted(found.items())]
