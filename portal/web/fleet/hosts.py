"""Render the pages of a host: its details, its registration, and changes of its state.

A page that changes the state first shows the effect of the change.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.fleet import gpu_health, host_history
from portal.reads.fleet import host_details as reads
from portal.services.fleet import host_effects
from portal.services.fleet import hosts as verbs
from portal.web.components.quantities import grouped
from portal.web.fleet.host_use import gpu_counter_rows, host_use_panel
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording import host_texts
from portal.wording.pages import fleet_pages
from scheduler.models import Host, Pool
from scheduler.state.states import AdminState, LeaseState

DRIVER_MEMORY_MIB = 512  # a slice without processes uses less memory than this, for the driver
HOST_CHANGES: dict[str, dict[str, Any]] = {
    "cordon": {
        "verb": verbs.cordon_host,
        "label": "Cordon",
        "title": "Cordon {}?",
        "from": {AdminState.IN_SERVICE},
    },
    "drain": {
        "verb": verbs.drain_host,
        "label": "Drain",
        "title": "Drain {}?",
        "from": {AdminState.IN_SERVICE, AdminState.CORDONED},
    },
    "return": {
        "verb": verbs.return_host,
        "label": "Return to service",
        "title": fleet_pages.RETURN_TITLE,
        "from": {AdminState.CORDONED, AdminState.DRAINING, AdminState.MAINTENANCE},
    },
    "off": {
        "verb": verbs.attest_off,
        "label": fleet_pages.POWERED_OFF_BUTTON,
        "title": fleet_pages.POWERED_OFF_TITLE,
        "from": set(),
        "leases": {LeaseState.SUSPECT, LeaseState.SILENT},
    },
    "revoke": {
        "verb": verbs.revoke_host,
        "label": "Revoke the credential",
        "title": fleet_pages.REVOKE_TITLE,
        "from": set(),
        "button": "on its page, next to the join token",
    },
}
CHANGES_THAT_STOP_WORK = ("revoke", "off")


class ReasonForm(ServiceForm):
    why = forms.CharField(label="Reason, shown to everybody", required=False, max_length=1000)


class MaintenanceForm(ServiceForm):
    start = forms.DateTimeField(label="From", widget=forms.DateTimeInput(attrs={"type": "datetime-local"}))
    end = forms.DateTimeField(label="To", widget=forms.DateTimeInput(attrs={"type": "datetime-local"}))
    why = forms.CharField(label="Reason, shown to everybody", max_length=1000)


class AddHostForm(ServiceForm):
    pool = forms.ChoiceField(label="Pool")
    name = forms.CharField(
        label="Host name", max_length=200, help_text="The machine's own host name, such as gpu-01."
    )
    labels = forms.CharField(
        label="Labels",
        required=False,
        max_length=2000,
        help_text="Such as site=north rack=r1. Requests can require labels.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pools = {pool.slug: pool for pool in Pool.objects.order_by("name")}
        fields: dict[str, Any] = self.fields
        fields["pool"].choices = [(slug, pool.name) for slug, pool in self.pools.items()]

    def clean_labels(self) -> dict[str, str]:
        pairs = [part.partition("=") for part in self.cleaned_data["labels"].split()]
        bad = next(
            (f"{name}{sign}{value}" for name, sign, value in pairs if not (name and sign and value)), None
        )
        if bad is not None:
            raise forms.ValidationError(fleet_pages.LABELS_INVALID.format(given=bad))
        return {name: value for name, _, value in pairs}


# Not split: the function builds one dict, whose values share the host, its units and the permissions.
@sign_in_required
def host(request: HttpRequest, name: str) -> HttpResponseBase:
    """Render a host's page: its hardware, GPUs with holders and readings, events, and possible changes."""
    user, now = current_user(request), timezone.now()
    posted = request.method == "POST"
    row = (
        _get_host_or_404(user, name)
        if posted
        else _get_host_or_404(user, name, reads.visible_or_removed_host)
    )
    may_change = policy.may(user, "host.change") and row.removed_at is None
    if posted:
        policy.require(user, "host.change")
        return _render_join_command(request, row, verbs.new_join_token(actor=user, host=row, now=now))
    revoked = None if row.removed_at else host_history.credential_revocation(row)
    context = {
        "host": row,
        "state_name": "revoked" if revoked else reads.host_state(row),
        "units": _folded_slices(units := reads.host_units(user, row, now)),
        "can_be_diagnosed": set() if revoked or row.lease_state == LeaseState.SILENT else _idle_gpus(units),
        "events": [_event_row(entry) for entry in host_history.host_history(user, row)],
        "revoked": revoked,
        "revoked_by": host_history.actor_name(user, revoked) if revoked else "",
        "models": reads.gpu_models_of_host(row),
        "refused": reads.last_rejected_agent(row),
        "lacks": reads.missing_isolation(row),
        "reported": row.hardware.get("reported") or {},
        "windows": gpu_health.maintenance_windows(row, now),
        "health": (health := gpu_health.gpu_health_of_host(row)),
        "missing": gpu_health.missing_gpus(row),
        "ways": gpu_health.interconnects(health),
        "topology": gpu_health.topology_rows(health),
        "strays": gpu_health.stray_processes(user, row),
        "host_use": host_use_panel(row, now),
        "gpu_counters": gpu_counter_rows(row),
        "reading_faults": [_fault_row(fault) for fault in gpu_health.reading_faults(row, now)],
        "target": (target := getattr(row, "dcgm_target", None)),
        "dcgm_problem": host_texts.DCGM_PROBLEMS[target.problem] if target else "",
        "sees_people": policy.sees_all_teams(user),
        "may_change": may_change,
        "closed": may_change and reads.is_closed_to_new_work(row),
        "still_there": reads.remaining_workloads(row, now)
        if may_change and reads.is_closed_to_new_work(row)
        else [],
        "changes": [
            {"url": reverse(f"host-{verb}", args=[name]), "label": change["label"]}
            for verb, change in HOST_CHANGES.items()
            if "button" not in change and _applies(change, row)
        ],
    }
    return live_refresh.render_live_page(
        request, "manage/host.html", "manage/host_part.html", context, topics=["hosts"], now=now
    )


def _idle_gpus(units: list[dict[str, Any]]) -> set[int]:
    """Return the primary keys of the GPUs that no workload holds. Only these GPUs can be diagnosed."""
    return {row["gpu"].pk for row in units} - {row["gpu"].pk for row in units if row["held"]}


def _folded_slices(units: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per unit, but fold equal idle slices of a GPU into one row with their ``count``."""
    rows: list[dict[str, Any]] = []
    for unit in units:
        last = rows[-1] if rows else None
        if last and _is_idle_slice(unit) and _is_idle_slice(last) and _slice_kind(unit) == _slice_kind(last):
            last["count"] += 1
        else:
            rows.append({**unit, "count": 1})
    return rows


def _slice_kind(row: dict[str, Any]) -> tuple[int, str]:
    return row["gpu"].pk, row["unit"].profile


def _is_idle_slice(row: dict[str, Any]) -> bool:
    """Return True if nothing uses the slice. Memory that the driver reserves does not count."""
    reading = row["reading"]
    if not row["unit"].profile or row["held"] or row["reservation"]:
        return False
    if reading is None:
        return True
    busy = reading.utilisation or reading.sm_active or reading.processes
    return not busy and (reading.memory_used_mib or 0) < DRIVER_MEMORY_MIB


def _fault_row(fault: dict[str, Any]) -> dict[str, Any]:
    """Return the texts of a fault of a reading, such as "Power" and "99 999 W"."""
    label, unit = host_texts.READING_LABELS[fault["reading"]]
    value = fault["last_value"]
    return {
        "label": label,
        "kind": host_texts.FAULT_KINDS[fault["kind"]],
        "source": host_texts.READING_SOURCES[fault["source"]],
        "count": fault["count"],
        "last_at": fault["last_at"],
        "last_value": "" if value is None else f"{grouped(value, 1 if value % 1 else 0)} {unit}".strip(),
    }


def _event_row(entry: host_history.HostHistoryEntry) -> dict[str, Any]:
    """Return a row of the history. ``words`` describes a person's action or the registration of the host."""
    if entry.about == "deed":
        return {"row": entry, "words": host_texts.host_action_text(entry.verb, entry.numbers)}
    return {
        "row": entry,
        "words": "Added" if entry.about == "host" and entry.reason == host_history.HOST_ADDED_REASON else "",
    }


def _get_host_or_404(
    user: User, name: str, find: Callable[[User, str], Host | None] = reads.visible_host
) -> Host:
    row = find(user, name)
    if row is None:
        raise Http404(fleet_pages.HOST_NOT_FOUND.format(name=name))
    return row


def _success_message(host_row: Host, verb: str, now: datetime) -> str:
    """Return the message after a change. For cordon and drain, it names the workloads that remain."""
    message = host_texts.HOST_VERBS[verb].done.format(host_row.name)
    if verb not in ("cordon", "drain"):
        return message
    rows = reads.remaining_workloads(host_row, now)
    leaving = [(row.workload.name, row.by) for row in rows if row.leaves]
    staying = [(row.workload.name, row.by) for row in rows if not row.leaves]
    return f"{message} {host_texts.remaining_work_sentence(leaving, staying)}"


def _closing_reasons(verb: str, row: Host) -> str:
    """Return why the host was closed, for the page that returns it to service; "" for other changes."""
    return (
        fleet_pages.CLOSED_FOR.format(reason=row.state_reason)
        if verb == "return" and row.state_reason
        else ""
    )


def _applies(change: dict[str, Any], row: Host) -> bool:
    """Return True if the host's page offers the change in the host's present state."""
    if row.lease_state in change.get("leases", ()):
        return True
    return row.admin_state in change["from"] or (
        change["label"] == "Return to service" and row.repair_state != "well"
    )


@sign_in_required
def host_change(request: HttpRequest, name: str, verb: str) -> HttpResponseBase:
    """Show the effect of a change; on POST, carry it out.

    ``verb`` is cordon, drain, return, off (declare the host powered off) or revoke (its credential).
    """
    user, now = current_user(request), timezone.now()
    policy.require(user, "host.change")
    row, change = _get_host_or_404(user, name), HOST_CHANGES[verb]
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        done = form.carry_out(change["verb"], actor=user, host=row, why=form.cleaned_data["why"], now=now)
        if done is not None:
            messages.success(request, _success_message(row, verb, now))
            return redirect("host", name)
    context = {
        "host": row,
        "title": change["title"].format(name),
        "text": _alive_warning(row)
        if verb == "off" and row.lease_state == LeaseState.ALIVE
        else host_texts.HOST_VERBS[verb].text + _closing_reasons(verb, row),
        "refused": verb == "off" and row.lease_state not in change["leases"],
        "label": change["label"],
        "effect": host_effects.host_verb_effect(row, verb, now),
        "stops_work": verb in CHANGES_THAT_STOP_WORK,
        "form": form,
        "now": now,
    }
    return render(request, "manage/host_change.html", context, status=400 if form.errors else 200)


def _alive_warning(row: Host) -> str:
    return fleet_pages.HOST_IS_ALIVE.format(name=row.name)


@sign_in_required
def host_maintenance(request: HttpRequest, name: str) -> HttpResponseBase:
    """Announce a maintenance window of a host. The engine schedules no work in the window."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "host.change")
    row = _get_host_or_404(user, name)
    start = (timezone.localtime(now) + timedelta(days=1)).replace(hour=8, minute=0, second=0, microsecond=0)
    initial = {
        "start": _datetime_input_value(start),
        "end": _datetime_input_value(start + timedelta(hours=4)),
    }
    form, effect, confirmation = MaintenanceForm(request.POST or None, initial=initial), None, ""
    if request.method == "POST" and form.is_valid():
        effect, confirmation = _maintenance_effect(form, user, row, now)
    if effect is not None and _is_confirmed(request, effect, confirmation):
        made = form.carry_out(verbs.set_maintenance, actor=user, host=row, now=now, **form.cleaned_data)
        if made is not None:
            messages.success(
                request,
                fleet_pages.MAINTENANCE_SET.format(name=name, start=timezone.localtime(made.start)),
            )
            return redirect("host", name)
    work = reads.remaining_workloads(row, now)
    context = {
        "host": row,
        "form": form,
        "effect": effect,
        "confirmation": confirmation,
        "last_end": work[-1].by if work else None,
        "now": now,
    }
    return render(request, "manage/host_maintenance.html", context, status=400 if form.errors else 200)


def _maintenance_effect(
    form: MaintenanceForm, user: User, row: Host, now: datetime
) -> tuple[host_effects.HostEffect | None, str]:
    """Return (effect, confirmation) of the maintenance window in the form.

    The effect is None if the window is refused; the form then contains the reason. The confirmation is a text
    that identifies the window. The user posts this text to confirm exactly this window.
    """
    window = {name: form.cleaned_data[name] for name in ("start", "end")}
    effect = form.carry_out(
        partial(host_effects.preview_host_verb, verb="maintenance"), actor=user, host=row, now=now, **window
    )
    return effect, "/".join(at.isoformat() for at in window.values())


def _is_confirmed(request: HttpRequest, effect: host_effects.HostEffect, confirmation: str) -> bool:
    """Return True if the maintenance window may be set now.

    Return False if the user only requested a preview. If the window affects reservations, return True only
    after the user has seen and confirmed this effect.
    """
    if request.POST.get("preview"):
        return False
    affects_reservations = bool(effect.unkept or effect.moved)
    return not affects_reservations or request.POST.get("confirmed") == confirmation


@sign_in_required
def host_add(request: HttpRequest) -> HttpResponseBase:
    """Register a host and show the command that starts its agent."""
    user = current_user(request)
    policy.require(user, "host.change")
    form = AddHostForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        pool = form.pools[given["pool"]]
        made = form.carry_out(
            verbs.add_host,
            actor=user,
            pool=pool,
            name=given["name"],
            labels=given["labels"],
            now=timezone.now(),
        )
        if made is not None:
            return _render_join_command(request, *made)
    return render(request, "manage/host_add.html", {"form": form}, status=400 if form.errors else 200)


def _render_join_command(request: HttpRequest, row: Host, token: str) -> HttpResponseBase:
    commands = verbs.join_commands(row, token)
    context = {
        "host": row,
        "installed": commands.installed,
        "checkout": commands.checkout,
        "simulated_as": reads.simulation_options(row),
    }
    response = render(request, "manage/host_command.html", context)
    response["Cache-Control"] = "no-store"
    return response


def _datetime_input_value(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M")
