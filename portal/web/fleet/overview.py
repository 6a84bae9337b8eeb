"""Render the fleet page: every GPU as a coloured cell."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from portal import policy
from portal.reads.fleet import gpu_overview as reads
from portal.redis_state import log_loss
from portal.web.components.drawings import use_step
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from scheduler.coordination.database_maintenance import current_maintenance
from scheduler.sweeps.silent_hosts import mass_silence

COLOURS = (("use", "Utilisation"), ("temperature", "Temperature"), ("owner", "Owner"), ("health", "Health"))
LAYOUTS = (("cells", "Cells"), ("table", "Table"))
CELL_PITCH_PIXELS = 16  # a cell is 14 px wide and 2 px apart
TEMPERATURE_SCALE_MIN, TEMPERATURE_SCALE_MAX = 30.0, 90.0  # degrees at the ends of the temperature scale
# A model with more hosts is folded: only hosts that need attention or have free GPUs are shown.
FOLD_ABOVE_HOSTS = 160


@sign_in_required
def fleet(request: HttpRequest) -> HttpResponseBase:
    """Render the fleet page.

    The query parameters ``colour``, ``show`` and ``pool`` choose the view. ``all=MODEL`` unfolds a model.
    """
    user, now = current_user(request), timezone.now()
    colour = _valid_choice(request.GET.get("colour"), COLOURS)
    shape = _valid_choice(request.GET.get("show"), LAYOUTS)
    pools = list(policy.visible_pools(user).order_by("name"))
    pool = next((row for row in pools if row.slug == request.GET.get("pool")), None)
    groups = reads.fleet_overview(user, now, pool.slug if pool else "")
    context = {
        "groups": [_model_group(group, colour, request.GET.get("all", "")) for group in groups],
        "figures": reads.fleet_totals(groups),
        "asks": reads.largest_requests(groups),
        "looks": reads.attention_list(user, groups, now),
        "hosts": sum(len(group.hosts) for group in groups),
        "simulated": any(row.host.simulated for group in groups for row in group.hosts),
        "colour": colour,
        "table": shape == "table",
        "colours": _choices(request, "colour", COLOURS, colour),
        "shapes": _choices(request, "show", LAYOUTS, shape),
        "pools": _choices(
            request,
            "pool",
            (("", "All pools"), *((row.slug, row.name) for row in pools)),
            pool.slug if pool else "",
        ),
        "may_change": (may_change := policy.may(user, "host.change")),
        "logs_lost": may_change and log_loss.is_log_loss_reported(),
        "silence": mass_silence(now) if may_change else None,
        "database_maintenance": current_maintenance(now),
        "teams": _teams(groups) if colour == "owner" else [],
    }
    return live_refresh.render_live_page(
        request, "manage/fleet.html", "manage/fleet_part.html", context, topics=["hosts", "queue"], now=now
    )


def _valid_choice(given: str | None, choices: tuple[tuple[str, str], ...]) -> str:
    return given if given in dict(choices) and given is not None else choices[0][0]


def _choices(request: HttpRequest, name: str, choices: Any, current: str) -> list[dict[str, Any]]:
    rows = []
    for value, label in choices:
        query = request.GET.copy()
        for key in ("part", "version"):
            query.pop(key, None)
        query[name] = value
        rows.append({"label": label, "url": f"?{query.urlencode()}", "current": value == current})
    return rows


def _model_group(group: reads.FleetModelGroup, colour: str, unfolded: str) -> dict[str, Any]:
    rows = group.hosts
    folded = 0
    if len(rows) > FOLD_ABOVE_HOSTS and unfolded != group.model:
        kept = [
            row for row in rows if row.state != "ready" or row.free or any(cell.idle for cell in row.cells)
        ]
        rows, folded = kept[:FOLD_ABOVE_HOSTS], len(rows) - len(kept[:FOLD_ABOVE_HOSTS])
    return {
        "model": group.model,
        "hosts": [_host_row(row, colour) for row in rows],
        "folded": folded,
        "host_count": len(group.hosts),
        "gpus": len(group.cells),
        "free": group.free_whole,
        "free_split": group.free_split,
        "free_on_one_host": group.free_on_one_host,
        "mean": None if group.mean_of_held is None else group.mean_of_held / 100,
    }


def _host_row(row: reads.FleetHostRow, colour: str) -> dict[str, Any]:
    return {
        "host": row.host,
        "state": row.state,
        "held": row.held,
        "free": row.free,
        "reserved": row.reserved,
        "cells": [_cell_drawing(cell, index, colour) for index, cell in enumerate(row.cells)],
        "width": len(row.cells) * CELL_PITCH_PIXELS,
        "words": _cells_description(row),
    }


def _cells_description(row: reads.FleetHostRow) -> str:
    """Return the text that describes a host's cells to screen readers."""
    parts = [f"{row.held} of {len(row.cells)} held", f"{row.free} free"]
    if row.reserved:
        parts.append(f"{row.reserved} reserved")
    idle = sum(1 for cell in row.cells if cell.idle)
    unwell = sum(1 for cell in row.cells if cell.unwell)
    if idle:
        parts.append(f"{idle} idle")
    if unwell:
        parts.append(f"{unwell} unwell")
    if row.state != "ready":
        parts.append(row.state.replace("_", " "))
    return f"{row.host.name}: {', '.join(parts)}"


def _cell_drawing(cell: reads.GpuCell, index: int, colour: str) -> dict[str, Any]:
    """Return the drawing of a cell.

    ``look`` is its CSS class. ``mark`` is a sign that is visible without colour: "cross", "dot", "slices" or
    "".
    """
    x = index * CELL_PITCH_PIXELS
    look, mark = _cell_style(cell, colour)
    slices = []
    if mark == "slices":
        wide = 10 / cell.units
        slices = [
            {
                "x": round(x + 2 + part * wide, 2),
                "width": round(max(1.0, wide - 0.6), 2),
                "held": part < cell.held,
            }
            for part in range(cell.units)
        ]
    return {
        "x": x,
        "mid": x + 7,
        "right": x + 10,
        "left": x + 4,
        "look": look,
        "mark": mark,
        "slices": slices,
        "cell": cell,
    }


# Not split: the function is a decision table, in which the first match decides.
def _cell_style(cell: reads.GpuCell, colour: str) -> tuple[str, str]:
    if cell.unwell:
        return "gpu-unhealthy", "cross"
    if cell.away:
        return "gpu-draining", ""
    if colour == "health":
        return ("use-2", "") if cell.seen else ("gpu-unknown", "")
    if colour == "temperature":
        if cell.temperature is None:
            return "gpu-unknown", ""
        return use_step(
            min(
                1.0,
                max(
                    0.0,
                    (cell.temperature - TEMPERATURE_SCALE_MIN)
                    / (TEMPERATURE_SCALE_MAX - TEMPERATURE_SCALE_MIN),
                ),
            )
        ), ""
    if cell.sliced:
        return "gpu-mig", "slices"
    if colour == "owner":
        return (
            (f"team-{cell.team.colour}" if cell.team else "gpu-unknown", "")
            if cell.held or cell.reserved
            else ("gpu-free", "")
        )
    if not cell.held:
        return ("gpu-reserved", "") if cell.condition == "reserved" else ("gpu-free", "")
    if cell.utilisation is None:
        return "gpu-unknown", ""
    return ("gpu-idle", "dot") if cell.idle else (use_step(cell.utilisation / 100), "")


def _teams(groups: list[reads.FleetModelGroup]) -> list[Any]:
    teams = {cell.team.pk: cell.team for group in groups for cell in group.cells if cell.team}
    return sorted(teams.values(), key=lambda team: team.name)
