"""Read the history of a host: hardware events, state changes, and actions of people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from portal import policy
from portal.models import AuditEvent, User
from portal.wording.pages import fleet_pages
from scheduler.models import GpuStateChange, Host, HostStateChange
from scheduler.services.powered_off import parse_powered_off
from telemetry.health.rules import public_detail
from telemetry.models import HealthEvent, HealthRule

MAX_ENTRIES = 20
HOST_STATE_FIELDS = (("In service", "admin_state"), ("Lease", "lease_state"), ("Repair", "repair_state"))
HOST_ADDED_REASON = "added"  # reason in the row that records the registration of the host
STATE_CHANGING_VERBS = ("cordon_host", "drain_host", "return_host", "return_gpu", "take_out_gpu", "add_host")
ANONYMOUS_OPERATOR = "an operator"


@dataclass(frozen=True)
class StateChange:
    """A change of one state of a host or GPU from ``old`` ("" if unknown) to ``new``.

    ``name`` says which state of a host changed, such as "Lease". It is "" for a GPU, which has only one
    state.
    """

    name: str
    old: str
    new: str


@dataclass(frozen=True)
class HostHistoryEntry:
    """One line of the history.

    ``about`` is "hardware" (an event), "host" or "gpu" (a change of state), or "deed" (a person's action).
    ``who`` is the person, or "an operator" if the viewer may not know the name. It is "the health rules" for
    a change by a health rule, and empty for other automatic changes. ``verb`` and ``numbers`` are set for a
    person's action. ``event``, ``meaning``, ``told`` (the event's detail) and ``done`` (the action taken) are
    set for a hardware event.
    """

    at: datetime
    about: str
    changes: list[StateChange] = field(default_factory=list)
    who: str = ""
    reason: str = ""
    gpu: int | None = None
    verb: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    event: HealthEvent | None = None
    meaning: str = ""
    told: str = ""
    done: str = ""

    @property
    def is_bad(self) -> bool:
        """Return True if a hardware event led to an action other than a note."""
        return self.event is not None and self.event.action_taken not in ("", HealthRule.Action.NOTE)


def host_history(viewer: User, host: Host) -> list[HostHistoryEntry]:
    """Return the history, newest first. Takes four queries, and one more if there are hardware events."""
    hardware = list(HealthEvent.objects.filter(host=host).select_related("gpu").order_by("-at")[:MAX_ENTRIES])
    deeds = list(_operator_actions(host)[:MAX_ENTRIES])
    by_moment = {deed.at: deed for deed in reversed(deeds)}
    handled = {event.handled_at for event in hardware if event.handled_at}
    names = _ActorNames(policy.sees_all_teams(viewer), by_moment, handled)
    found = [
        *_hardware_entries(viewer, hardware),
        *_host_state_entries(host, names),
        *_gpu_state_entries(host, names),
    ]
    state_change_times = {row.at for row in found if row.about in ("host", "gpu")}
    found += [
        HostHistoryEntry(
            deed.at,
            "deed",
            who=names.of(deed),
            reason=deed.why,
            verb=deed.verb,
            numbers=_action_numbers(deed),
        )
        for deed in deeds
        if deed.verb not in STATE_CHANGING_VERBS or deed.at not in state_change_times
    ]
    return sorted(found, key=lambda row: row.at, reverse=True)[:MAX_ENTRIES]


def credential_revocation(host: Host) -> AuditEvent | None:
    """Return the audit event that revoked the credential of the host's agent.

    Return None if the credential was never revoked. If the host has a credential now, return None without a
    query.
    """
    return None if host.credential_hash else _operator_actions(host).filter(verb="revoke_host").first()


def credential_revocations() -> dict[int, AuditEvent]:
    """Return the last revocation of each host that has no credential now, by host id. Takes two queries."""
    without = Host.objects.filter(credential_hash="").values_list("pk", flat=True)
    names = {f"host:{pk}": pk for pk in without}
    deeds = AuditEvent.objects.filter(target__in=names, verb="revoke_host").order_by("at", "pk")
    return {names[deed.target]: deed for deed in deeds}


def actor_name(viewer: User, deed: AuditEvent) -> str:
    """Return the name of the person who acted, or "an operator" if the viewer may not know it."""
    return _ActorNames(policy.sees_all_teams(viewer), {}, set()).of(deed)


def hardware_event_detail(viewer: User, event: HealthEvent) -> str:
    """Return the detail of a hardware event. Only operators and auditors learn the owner of a process."""
    return event.detail if policy.sees_all_teams(viewer) else public_detail(event)


def _operator_actions(host: Host) -> Any:
    return AuditEvent.objects.filter(target=f"host:{host.pk}").select_related("actor").order_by("-at", "-pk")


def _action_numbers(deed: AuditEvent) -> dict[str, Any]:
    return {**(deed.before or {}), **(deed.after or {})}


@dataclass(frozen=True)
class _ActorNames:
    """A lookup of the person who made a change, by the time of the change.

    The lookup works because an audit record has the same timestamp as the rows that changed with it.
    """

    are_known: bool
    by_moment: dict[datetime, AuditEvent]
    handled: set[datetime]

    def of(self, deed: AuditEvent) -> str:
        if deed.actor is None:
            return ""
        return (deed.actor.get_full_name() or deed.actor_name) if self.are_known else ANONYMOUS_OPERATOR

    def at(self, moment: datetime) -> str:
        if moment in self.by_moment:
            return self.of(self.by_moment[moment])
        return "the health rules" if moment in self.handled else ""

    def reason(self, moment: datetime, kept: str) -> str:
        """Return the reason in the person's audit record.

        Return ``kept``, the stored reason, if no audit record has a reason.
        """
        deed = self.by_moment.get(moment)
        if deed is not None and deed.why:
            return deed.why
        # Without an audit record, the stored reason may name an operator whom the viewer may not know.
        off = parse_powered_off(kept)
        return (
            kept if off is None or self.are_known else f"seen powered off by {ANONYMOUS_OPERATOR}: {off[1]}"
        )


def _hardware_entries(viewer: User, rows: list[HealthEvent]) -> Iterable[HostHistoryEntry]:
    codes = {row.code for row in rows}
    meanings = dict(HealthRule.objects.filter(code__in=codes).values_list("code", "meaning")) if codes else {}
    for row in rows:
        yield HostHistoryEntry(
            row.at,
            "hardware",
            gpu=row.gpu.index if row.gpu else None,
            event=row,
            meaning=meanings.get(row.code, ""),
            told=hardware_event_detail(viewer, row),
            done=fleet_pages.HARDWARE_ACTION_SENTENCES.get(row.action_taken, row.action_taken),
        )


def _host_state_entries(host: Host, names: _ActorNames) -> Iterable[HostHistoryEntry]:
    rows = list(HostStateChange.objects.filter(host=host).order_by("-at", "-pk")[: MAX_ENTRIES + 1])
    for row, before in zip(rows, [*rows[1:], None], strict=True):
        if before is None and len(rows) > MAX_ENTRIES:
            continue  # the older row, which has the former state, was not read
        changes = [
            StateChange(name, getattr(before, of), getattr(row, of))
            for name, of in HOST_STATE_FIELDS
            if before is not None and getattr(before, of) != getattr(row, of)
        ]
        if before is None and row.reason != HOST_ADDED_REASON:
            changes = [StateChange("Lease", "", row.lease_state)]
        if not changes and row.reason != HOST_ADDED_REASON and (not row.reason or row.at in names.by_moment):
            continue  # the row has no reason, or the entry of the person's action has it
        yield HostHistoryEntry(row.at, "host", changes, names.at(row.at), names.reason(row.at, row.reason))


def _gpu_state_entries(host: Host, names: _ActorNames) -> Iterable[HostHistoryEntry]:
    rows = list(
        GpuStateChange.objects.filter(gpu__host=host)
        .select_related("gpu")
        .order_by("-at", "-pk")[: 2 * MAX_ENTRIES]
    )
    for at, row in enumerate(rows[:MAX_ENTRIES]):
        before = next((older.repair_state for older in rows[at + 1 :] if older.gpu_id == row.gpu_id), "")
        yield HostHistoryEntry(
            row.at,
            "gpu",
            [StateChange("", before, row.repair_state)]
            if before != row.repair_state
            else [],  # the state is unchanged: the row records that the GPU went missing or returned
            names.at(row.at),
            names.reason(row.at, row.reason),
            gpu=row.gpu.index,
        )
