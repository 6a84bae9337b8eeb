"""Verbs on hosts: adding them, taking them out and giving them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from portal import policy
from portal.errors import Conflict
from portal.input_checks import HOST_NAME_PATTERN, InputChecks, checked_reason, display_value
from portal.models import User
from portal.services import audit
from portal.wording import host_texts
from scheduler import services as engine
from scheduler.models import Host, MaintenanceWindow, Pool
from scheduler.services import powered_off
from scheduler.state.states import TRANSITIONS, AdminState, RepairState

MAX_MAINTENANCE = timedelta(days=90)
ADMIN_STATES = {"cordon": AdminState.CORDONED, "drain": AdminState.DRAINING, "return": AdminState.IN_SERVICE}


def add_host(
    *,
    actor: User,
    pool: Pool,
    name: str,
    now: datetime,
    labels: dict[str, str] | None = None,
    via: str = "web",
) -> tuple[Host, str]:
    """Make a host known and give the token with which its agent joins: once, within 15 minutes; only its hash is kept.

    Raises Invalid, NotAllowed, Conflict when the name is taken.
    """
    policy.require(actor, "host.change")
    checks = InputChecks()
    name = checks.pattern(
        "name", name, HOST_NAME_PATTERN, "1 to 63 small letters, digits, dots and dashes, such as gpu-01"
    )
    clean = checks.labels("labels", labels or {})
    checks.done()
    try:
        with transaction.atomic():
            host = engine.add_host(pool=pool, name=name, labels=clean, now=now)
            text = engine.issue_join_token(host, now=now)
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="add_host",
                target=host,
                after={"pool": pool.slug, "name": name, "labels": clean},
            )
    except IntegrityError:
        raise Conflict(f"name is {name}; a host of that name exists already.", field="name") from None
    return host, text


@dataclass(frozen=True)
class JoinCommands:
    """One command to paste on the machine: where the agent is installed as a service, and in a checkout of gpupool."""

    installed: str
    checkout: str


def join_commands(host: Host, token: str) -> JoinCommands:
    """With which an agent joins as this host by a token."""
    whom = f"--edge {settings.GPUPOOL_EDGE_URL} --host {host.name} --join-token {token}"
    # The agent that it had may still run, and holds its state folder.
    stop = "sudo systemctl stop gpupool-agent && " if host.agent_version else ""
    return JoinCommands(
        f"{stop}sudo /opt/gpupool-agent/current/bin/gpupool-agent join {whom} "
        "&& sudo systemctl enable --now gpupool-agent",
        f"./run agent run --state ~/.local/state/gpupool-agent {whom}",
    )


def new_join_token(*, actor: User, host: Host, now: datetime, via: str = "web") -> str:
    """Another token for a host whose first one ran out. Tokens not used yet stop working. Raises NotAllowed."""
    policy.require(actor, "host.change")
    with transaction.atomic():
        text = engine.issue_join_token(host, now=now)
        audit.record(actor=actor, via=via, now=now, verb="new_join_token", target=host)
    return text


def revoke_host(*, actor: User, host: Host, now: datetime, why: str = "", via: str = "web") -> Host:
    """Take the agent's credential away: it must join again with a new token. Raises Invalid, NotAllowed."""
    policy.require(actor, "host.change")
    why = checked_reason(why)
    with transaction.atomic():
        engine.revoke_credential(host, now=now)
        audit.record(actor=actor, via=via, now=now, verb="revoke_host", target=host, why=why)
    return host


def host_change_refusal(host: Host, verb: str, now: datetime) -> str:
    """Why cordon, drain, return or off would be refused of a host as it is; empty: it would not be."""
    if verb in ADMIN_STATES:
        new, old = ADMIN_STATES[verb], AdminState(host.admin_state)
        is_ill = verb == "return" and host.repair_state != RepairState.WELL
        return (
            ""
            if str(new) in TRANSITIONS[AdminState][str(old)] or is_ill
            else _unchanged_state_refusal(host, new)
        )
    return (
        _powered_on_refusal(host) if verb == "off" and not powered_off.may_be_powered_off(host, now) else ""
    )


def cordon_host(*, actor: User, host: Host, why: str, now: datetime, via: str = "web") -> Host:
    """Nothing new starts there; what runs goes on. Raises Invalid, Conflict, NotAllowed."""
    return _change_admin_state(actor, host, AdminState.CORDONED, why, now, via, "cordon_host")


def drain_host(*, actor: User, host: Host, why: str, now: datetime, via: str = "web") -> Host:
    """Nothing new starts there, and what runs is asked to checkpoint and go. Raises Invalid, Conflict, NotAllowed."""
    return _change_admin_state(actor, host, AdminState.DRAINING, why, now, via, "drain_host")


def return_host(*, actor: User, host: Host, now: datetime, why: str = "", via: str = "web") -> Host:
    """Back in service; an operator who returns a quarantined host attests that nothing of before runs on it.

    Raises Invalid, Conflict, NotAllowed.
    """
    return _change_admin_state(actor, host, AdminState.IN_SERVICE, why, now, via, "return_host")


def attest_off(*, actor: User, host: Host, why: str, now: datetime, via: str = "web") -> Host:
    """The actor has seen that the machine is off: its work may start elsewhere at once. Raises Invalid, Conflict, NotAllowed."""
    policy.require(actor, "host.change")
    why = checked_reason(why)
    told = ("lease_state", "last_sync_at")
    with transaction.atomic():
        before = audit.audited_fields(host, *told)
        if not powered_off.attest_powered_off(
            host, reason=f"{powered_off.POWERED_OFF_PREFIX}{actor.get_username()}: {why}"[:300], now=now
        ):
            raise Conflict(_powered_on_refusal(host))
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="attest_host_off",
            target=host,
            why=why,
            before=before,
            after=audit.audited_fields(host, *told),
        )
    return host


def set_maintenance(
    *, actor: User, host: Host, start: datetime, end: datetime, why: str, now: datetime, via: str = "web"
) -> MaintenanceWindow:
    """Announce a window in which the host is away: nothing is planned into it. Raises Invalid, NotAllowed, and Conflict where
    another of its windows has a part of that time."""
    policy.require(actor, "host.change")
    checks = InputChecks()
    why = checks.text("why", why, most=300)
    first, last = checked_maintenance_window(start, end, now, checks)
    with transaction.atomic():
        try:
            window = engine.set_maintenance(host, start=first, end=last, reason=why, now=now)
        except engine.OperationRejected as refused:
            raise overlapping_maintenance_conflict(refused.numbers) from None
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_maintenance",
            target=host,
            why=why,
            after={"start": first.isoformat(), "end": last.isoformat()},
        )
    return window


def overlapping_maintenance_conflict(other: Mapping[str, Any]) -> Conflict:
    """Why a window can't be announced beside this other one of its host (numbers of ``engine.check_maintenance``)."""
    code = "windows_overlap"
    return Conflict(host_texts.MAINTENANCE_REFUSED[code](other), field="start", code=code, numbers=other)


def checked_maintenance_window(
    start: Any, end: Any, now: datetime, checks: InputChecks | None = None
) -> tuple[datetime, datetime]:
    """The start and the end of a maintenance window; ``checks``: what was found wrong beside it. Raises Invalid."""
    checks = checks or InputChecks()
    first, last = checks.aware_datetime("start", start), checks.aware_datetime("end", end)
    if not {"start", "end"} & set(checks.problems):
        told = last.isoformat()
        if last <= first or last - first > MAX_MAINTENANCE:
            days = MAX_MAINTENANCE.days
            checks.note("end", told, f"end is {told}; allowed: after the start and within {days} days of it.")
        if last <= now:
            checks.note("end", told, f"end is {told}, which is past; allowed: after {now.isoformat()}.")
    checks.done()
    return first, last


def _change_admin_state(
    actor: User, host: Host, new: AdminState, why: str, now: datetime, via: str, verb: str
) -> Host:
    policy.require(actor, "host.change")
    why = checked_reason(why)
    verbs: dict[AdminState, Callable[..., bool]] = {
        AdminState.CORDONED: engine.cordon_host,
        AdminState.DRAINING: engine.drain_host,
        AdminState.IN_SERVICE: engine.return_host,
    }
    told = ("admin_state", "repair_state", "state_reason")
    with transaction.atomic():
        before = audit.audited_fields(host, *told)
        if not verbs[new](host, reason=why, now=now):
            host.refresh_from_db()
            raise Conflict(_unchanged_state_refusal(host, new))
        host.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb=verb,
            target=host,
            why=why,
            before=before,
            after=audit.audited_fields(host, *told),
        )
    return host


def _unchanged_state_refusal(host: Host, new: AdminState) -> str:
    is_now = f"{host.name} is {host.admin_state.replace('_', ' ')}"
    return (
        f"{is_now} already."
        if host.admin_state == new
        else f"{is_now}; it can't become {new.value.replace('_', ' ')}."
    )


def _powered_on_refusal(host: Host) -> str:
    return f"{host.name}'s agent speaks, or never has: the machine is not off. Drain it, and its work goes elsewhere."


def cancel_maintenance(
    *, actor: User, host: Host, window: Any, now: datetime, why: str = "", via: str = "web"
) -> MaintenanceWindow:
    """Take an announced window back. Raises Invalid, NotAllowed, Conflict when it was gone already."""
    policy.require(actor, "host.change")
    checks = InputChecks()
    there = {str(each.pk): each for each in host.maintenance_windows.filter(end__gt=now)}
    name = str(window)
    if name not in there:
        announced = [(number, each.start, each.end) for number, each in there.items()]
        checks.note(
            "window",
            window,
            f"window is {display_value(name)}; {host_texts.maintenance_windows_text(host.name, announced)}",
        )
    checks.done()
    row, why = there[name], checked_reason(why)
    with transaction.atomic():
        before = audit.audited_fields(row, "start", "end", "reason")
        if not engine.cancel_maintenance(row, now=now):
            raise Conflict("The window was taken back already.")
        audit.record(
            actor=actor, via=via, now=now, verb="cancel_maintenance", target=host, before=before, why=why
        )
    row.pk = int(name)
    return row
