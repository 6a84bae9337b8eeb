"""What happened to a host: hardware events, changes of its states and its GPUs' (from what to what, by whom), people's deeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from portal import policy
from portal.models import AuditEvent, User
from scheduler.attestation import seen_off
from scheduler.models import GpuStateChange, Host, HostStateChange
from telemetry.health import for_everybody
from telemetry.models import HealthEvent, HealthRule

SHOWN = 20
STATES = (("In service", "admin_state"), ("Lease", "lease_state"), ("Repair", "repair_state"))
ADDED = "added"  # the reason of a host's first row
CHANGES_A_STATE = ("cordon_host", "drain_host", "return_host", "return_gpu", "take_out_gpu", "add_host")
SOMEBODY = "an operator"
# What was done about a hardware event, in words.
DONE = {
    "": "",
    "note": "Noted.",
    "warn": "Operators are told.",
    "quarantine_gpu": "The GPU is quarantined.",
    "cordon": "The host is cordoned.",
    "drain": "The host is drained.",
    "held_back": "Left to a person: too much of the pool was taken out lately.",
}


@dataclass(frozen=True)
class Change:
    """One state of a host (``name``) or of a GPU: ``old`` is empty where nothing is kept of before."""

    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Happened:
    """One line. ``about``: hardware, host, gpu or deed. ``who``: by whom, as the viewer may know; empty where it came by itself.
    ``verb``: a deed's, with ``numbers``; ``event``, ``meaning``, ``told`` and ``done``: of a hardware event."""

    at: datetime
    about: str
    changes: list[Change] = field(default_factory=list)
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
        """Whether something was done about a hardware event."""
        return self.event is not None and self.event.action_taken not in ("", HealthRule.Action.NOTE)


def events(viewer: User, host: Host) -> list[Happened]:
    """The newest first. Five queries, one more where hardware events are among them."""
    hardware = list(HealthEvent.objects.filter(host=host).select_related("gpu").order_by("-at")[:SHOWN])
    deeds = list(_deeds(host)[:SHOWN])
    by_moment = {deed.at: deed for deed in reversed(deeds)}
    handled = {event.handled_at for event in hardware if event.handled_at}
    names = _Names(policy.sees_all_teams(viewer), by_moment, handled)
    found = [*_hardware(viewer, hardware), *_of_host(host, names), *_of_gpus(host, names)]
    told = {row.at for row in found if row.about in ("host", "gpu")}
    found += [
        Happened(deed.at, "deed", who=names.of(deed), reason=deed.why, verb=deed.verb, numbers=_facts(deed))
        for deed in deeds
        if deed.verb not in CHANGES_A_STATE or deed.at not in told
    ]
    return sorted(found, key=lambda row: row.at, reverse=True)[:SHOWN]


def revoked(host: Host) -> AuditEvent | None:
    """Who revoked its agent's credential, and when and why; None while it has one, or never had one that was revoked. No query
    while it has one."""
    return None if host.credential_hash else _deeds(host).filter(verb="revoke_host").first()


def revocations() -> dict[int, AuditEvent]:
    """The same of all hosts, by the host's id. Two queries."""
    without = Host.objects.filter(credential_hash="").values_list("pk", flat=True)
    names = {f"host:{pk}": pk for pk in without}
    deeds = AuditEvent.objects.filter(target__in=names, verb="revoke_host").order_by("at", "pk")
    return {names[deed.target]: deed for deed in deeds}


def name_of(viewer: User, deed: AuditEvent) -> str:
    """Whose deed it was, as far as the viewer may know people."""
    return _Names(policy.sees_all_teams(viewer), {}, set()).of(deed)


def detail_of(viewer: User, event: HealthEvent) -> str:
    """What a hardware event says, as the viewer may know it: whose process it was is for operators and auditors."""
    return event.detail if policy.sees_all_teams(viewer) else for_everybody(event)


def _deeds(host: Host) -> Any:
    return AuditEvent.objects.filter(target=f"host:{host.pk}").select_related("actor").order_by("-at", "-pk")


def _facts(deed: AuditEvent) -> dict[str, Any]:
    return {**(deed.before or {}), **(deed.after or {})}


@dataclass(frozen=True)
class _Names:
    """Who did what happened at a moment: a person's deed and the rows it wrote carry the same time."""

    are_known: bool
    by_moment: dict[datetime, AuditEvent]
    handled: set[datetime]

    def of(self, deed: AuditEvent) -> str:
        if deed.actor is None:
            return ""
        return (deed.actor.get_full_name() or deed.actor_name) if self.are_known else SOMEBODY

    def at(self, moment: datetime) -> str:
        if moment in self.by_moment:
            return self.of(self.by_moment[moment])
        return "the health rules" if moment in self.handled else ""

    def reason(self, moment: datetime, kept: str) -> str:
        """A person's own words where there are any; else what is kept with the change."""
        deed = self.by_moment.get(moment)
        if deed is not None and deed.why:
            return deed.why
        off = seen_off(kept)  # of long ago: the deed is not among those that were read
        return kept if off is None or self.are_known else f"seen powered off by {SOMEBODY}: {off[1]}"


def _hardware(viewer: User, rows: list[HealthEvent]) -> Iterable[Happened]:
    codes = {row.code for row in rows}
    meanings = dict(HealthRule.objects.filter(code__in=codes).values_list("code", "meaning")) if codes else {}
    for row in rows:
        yield Happened(
            row.at,
            "hardware",
            gpu=row.gpu.index if row.gpu else None,
            event=row,
            meaning=meanings.get(row.code, ""),
            told=detail_of(viewer, row),
            done=DONE.get(row.action_taken, row.action_taken),
        )


def _of_host(host: Host, names: _Names) -> Iterable[Happened]:
    rows = list(HostStateChange.objects.filter(host=host).order_by("-at", "-pk")[: SHOWN + 1])
    for row, before in zip(rows, [*rows[1:], None], strict=True):
        if before is None and len(rows) > SHOWN:
            continue  # what was before is not known: it is older than what is shown
        changes = [
            Change(name, getattr(before, of), getattr(row, of))
            for name, of in STATES
            if before is not None and getattr(before, of) != getattr(row, of)
        ]
        if before is None and row.reason != ADDED:
            changes = [Change("Lease", "", row.lease_state)]
        if not changes and row.reason != ADDED and (not row.reason or row.at in names.by_moment):
            continue  # nothing to say, or the deed says it
        yield Happened(row.at, "host", changes, names.at(row.at), names.reason(row.at, row.reason))


def _of_gpus(host: Host, names: _Names) -> Iterable[Happened]:
    rows = list(GpuStateChange.objects.filter(gpu__host=host).select_related("gpu").order_by("-at", "-pk")[: 2 * SHOWN])
    for at, row in enumerate(rows[:SHOWN]):
        before = next((older.repair_state for older in rows[at + 1 :] if older.gpu_id == row.gpu_id), "")
        yield Happened(
            row.at,
            "gpu",
            [Change("", before, row.repair_state)] if before != row.repair_state else [],  # else it went missing, or came back
            names.at(row.at),
            names.reason(row.at, row.reason),
            gpu=row.gpu.index,
        )
