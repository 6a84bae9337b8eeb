"""Read the choices of the request form: targets, projects, reservations and dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal import policy
from portal.models import User
from portal.reads.fleet import free_capacity, host_details
from portal.reads.fleet.free_capacity import FreeCapacity
from portal.reads.work import job_arrays, team_summaries, workload_details
from portal.web.components.quantities import gpu_model, money
from portal.web.gpu_request.field_values import target_value
from portal.wording import formatting
from portal.wording.pages import request_pages
from scheduler.models import JobArray, Pool, Project, Reservation, Workload

MAX_DEPENDENCY_CHOICES = 50


@dataclass(frozen=True)
class GpuRequestOptions:
    """The choices of a request form. They are read once per page, although the page builds several forms."""

    lines: list[FreeCapacity]
    projects: dict[str, Project]
    reservations: dict[str, Reservation]
    currency: str
    earlier: dict[str, Workload | JobArray]  # jobs and arrays that a new job can wait for
    beside: str  # sentences about the CPU and memory of the hosts

    @classmethod
    def of(cls, user: User, now: datetime, currency: str) -> GpuRequestOptions:
        """Read the choices of ``user`` at ``now``."""
        projects = policy.launchable_projects(user).select_related("team").order_by("name")
        lines = free_capacity.free_capacity(user, now)
        return cls(
            lines,
            {str(project.pk): project for project in projects},
            {str(row.public_id): row for row in team_summaries.open_reservations(user, now)},
            currency,
            {str(row.public_id): row for row in _own_open_work(user)},
            _host_capacity_text({line.pool.pk: line.pool for line in lines}),
        )


def _own_open_work(user: User) -> list[Workload | JobArray]:
    """Return the user's jobs and arrays that have not ended."""
    return [
        *workload_details.own_open_workloads(user).filter(array=None)[:MAX_DEPENDENCY_CHOICES],
        *job_arrays.own_open_arrays(user)[:MAX_DEPENDENCY_CHOICES],
    ]


def dependency_label(row: Workload | JobArray) -> str:
    """Return the label of a job or array that a new job can wait for."""
    return f"{row.name}, all tasks" if isinstance(row, JobArray) else row.name


def _host_capacity_text(pools: Mapping[int, Pool]) -> str:
    """Return sentences about the CPU cores and memory of each pool's hosts; empty if unknown."""
    sizes = host_details.host_sizes_by_pool(pools)
    subject = "Hosts of {}" if len(pools) > 1 else "The hosts"
    return " ".join(
        f"{subject.format(pool.name)} have {formatting.host_size_range(*sizes[pk])}."
        for pk, pool in pools.items()
        if pk in sizes
    )


def target_choices(lines: list[FreeCapacity], currency: str) -> list[tuple[str, SafeString]]:
    """Return the choices of the field ``target``: the hardware that a user can request.

    There is one choice for each model, one for each slice profile, and one for any whole GPU of each pool.
    """
    several = len({line.pool.pk for line in lines}) > 1
    choices = []
    for line in lines:
        name = gpu_model(line.model) if not line.profile else f"{line.profile} of {gpu_model(line.model)}"
        where = f", {line.pool.name}" if several else ""
        price = f"{money(line.price, currency)}/h" if line.price is not None else "no price"
        choices.append(
            (target_value(line), _target_label(name, where, f"{line.free} of {line.total} free now", price))
        )
    for slug, name in {line.pool.slug: line.pool.name for line in lines}.items():
        label = request_pages.ANY_WHOLE_GPU.format(pool=name) if several else "Any whole GPU"
        choices.append((f"{slug}||", _target_label(label, "", "", "")))
    return choices


def _target_label(name: str, where: str, free_text: str, price: str) -> SafeString:
    return format_html(
        '<span class="pick-line"><span><b>{}</b><span class="muted">{}</span></span>'
        '<span>{}</span><span class="muted">{}</span></span>',
        name,
        where,
        free_text,
        price,
    )


def target_values(lines: list[FreeCapacity]) -> set[str]:
    """Return all values of the field ``target``."""
    return {value for value, _ in target_choices(lines, "")}
