"""Add hosts, take them out of service and return them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from portal import policy
from portal.input_checks import HOST_NAME_PATTERN, InputChecks, checked_reason, display_value
from portal.models import User
from portal.services import audit
from portal.services.step_up import require_fresh_proof
from portal.wording import host_texts
from portal.wording.problems import administration_problems
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected
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
    """Add a host. Return it with its single-use join token, which is valid for 15 minutes.

    Only the hash of the token is stored. Raises Invalid, NotAllowed. Raises OperationRejected if the name is
    taken.
    """
    policy.require(actor, "host.change")
    checks = InputChecks()
    name = checks.pattern(
        "name", name, HOST_NAME_PATTERN, "1 to 63 lower-case letters, digits, dots and dashes, such as gpu-01"
    )
    clean = checks.labels("labels", labels or {})
    checks.done()
    try:
        with transaction.atomic():
            host = scheduling.add_host(pool=pool, name=name, labels=clean, now=now)
            text = scheduling.issue_join_token(host, now=now)
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="add_host",
                target=host,
                after={"pool": pool.slug, "name": name, "labels": clean},
            )
    except IntegrityError:
        raise OperationRejected("host_name_is_taken", {"name": name}, field="name") from None
    return host, text


@dataclass(frozen=True)
class JoinCommands:
    """The commands with which an agent joins, to be run on the machine.

    ``installed`` is for an installed service, ``checkout`` for a checkout of gpupool's repository.
    """

    installed: str
    checkout: str


def join_commands(host: Host, token: str) -> JoinCommands:
    """Return the commands with which an agent joins as this host.

    The token is the standard input of the agent, because every user of the machine can read its arguments.
    """
    whom = f"--edge {settings.GPUPOOL_EDGE_URL} --host {host.name} --join-token-file -"
    # An earlier agent of the host may still run and use the state folder.
    stop = "sudo systemctl stop gpupool-agent && " if host.agent_version else ""
    return JoinCommands(
        f"{stop}printf %s {token} | sudo /opt/gpupool-agent/current/bin/gpupool-agent join {whom} "
        "&& sudo systemctl enable --now gpupool-agent",
        f"printf %s {token} | ./run agent run --state ~/.local/state/gpupool-agent {whom}",
    )


def new_join_token(*, actor: User, host: Host, now: datetime, via: str = "web") -> str:
    """Return a new join token. Earlier unused tokens of the host become invalid. Raises NotAllowed."""
    policy.require(actor, "host.change")
    with transaction.atomic():
        text = scheduling.issue_join_token(host, now=now)
        audit.record(actor=actor, via=via, now=now, verb="new_join_token", target=host)
    return text


def revoke_host(*, actor: User, host: Host, now: datetime, why: str = "", via: str = "web") -> Host:
    """Revoke the credential of the host's agent. The agent must join again with a new token.

    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "host.change")
    require_fresh_proof(actor, "revoke_host", now)
    why = checked_reason(why)
    with transaction.atomic():
        scheduling.revoke_credential(host, now=now)
        audit.record(actor=actor, via=via, now=now, verb="revoke_host", target=host, why=why)
    return host


def host_change_refusal(host: Host, verb: str, now: datetime) -> OperationRejected | None:
    """Return the error that cordon, drain, return or off would raise now.

    Return None if the verb would succeed.
    """
    if verb in ADMIN_STATES:
        new, old = ADMIN_STATES[verb], AdminState(host.admin_state)
        is_ill = verb == "return" and host.repair_state != RepairState.WELL
        return (
            None
            if str(new) in TRANSITIONS[AdminState][str(old)] or is_ill
            else _unchanged_state_refusal(host, new)
        )
    if verb == "off" and not powered_off.may_be_powered_off(host, now):
        return _powered_on_refusal(host)
    return None


def cordon_host(*, actor: User, host: Host, why: str, now: datetime, via: str = "web") -> Host:
    """Stop starting workloads on a host. Running workloads continue.

    Raises Invalid, OperationRejected, NotAllowed.
    """
    return _change_admin_state(actor, host, AdminState.CORDONED, why, now, via, "cordon_host")


def drain_host(*, actor: User, host: Host, why: str, now: datetime, via: str = "web") -> Host:
    """Stop starting workloads on a host, and evict its preemptible workloads with notice.

    Raises Invalid, OperationRejected, NotAllowed.
    """
    return _change_admin_state(actor, host, AdminState.DRAINING, why, now, via, "drain_host")


def return_host(*, actor: User, host: Host, now: datetime, why: str = "", via: str = "web") -> Host:
    """Return a host to service.

    If the host is quarantined, the operator confirms by this call that no earlier process runs on it. Raises
    Invalid, OperationRejected, NotAllowed.
    """
    return _change_admin_state(actor, host, AdminState.IN_SERVICE, why, now, via, "return_host")


def attest_off(*, actor: User, host: Host, why: str, now: datetime, via: str = "web") -> Host:
    """Record that the operator has seen the machine powered off. Its workloads may restart elsewhere at once.

    Raises Invalid, OperationRejected, NotAllowed.
    """
    policy.require(actor, "host.change")
    why = checked_reason(why)
    audited = ("lease_state", "last_sync_at")
    with transaction.atomic():
        before = audit.audited_fields(host, *audited)
        if not powered_off.attest_powered_off(
            host, reason=f"{powered_off.POWERED_OFF_PREFIX}{actor.get_username()}: {why}"[:300], now=now
        ):
            raise _powered_on_refusal(host)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="attest_host_off",
            target=host,
            why=why,
            before=before,
            after=audit.audited_fields(host, *audited),
        )
    return host


def set_maintenance(
    *, actor: User, host: Host, start: datetime, end: datetime, why: str, now: datetime, via: str = "web"
) -> MaintenanceWindow:
    """Announce a maintenance window. The planner places no workload that would run into it.

    Raises Invalid, NotAllowed. Raises OperationRejected if the window overlaps another window of the host.
    """
    policy.require(actor, "host.change")
    checks = InputChecks()
    why = checks.text("why", why, most=300)
    first, last = checked_maintenance_window(start, end, now, checks)
    with transaction.atomic():
        window = scheduling.set_maintenance(host, start=first, end=last, reason=why, now=now)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_maintenance",
            target=host,
            why=why,
            after={"start": first.isoformat(), "end": last.isoformat()},
        )
    scheduling.record_unserved_reservations(host.pool, now=now)
    return window


def checked_maintenance_window(
    start: Any, end: Any, now: datetime, checks: InputChecks | None = None
) -> tuple[datetime, datetime]:
    """Check a maintenance window, and return its start and end.

    Raises Invalid with the problems of the window and the problems that ``checks`` contained before.
    """
    checks = checks or InputChecks()
    first, last = checks.aware_datetime("start", start), checks.aware_datetime("end", end)
    if not {"start", "end"} & set(checks.problems):
        end_text = last.isoformat()
        if last <= first or last - first > MAX_MAINTENANCE:
            problems = administration_problems
            problem = problems.MAINTENANCE_END if last <= first else problems.MAINTENANCE_LENGTH
            checks.note(
                "end",
                end_text,
                problem.format(end=end_text, start=first.isoformat(), days=MAX_MAINTENANCE.days),
            )
        if last <= now:
            checks.note(
                "end",
                end_text,
                administration_problems.MAINTENANCE_IS_PAST.format(end=end_text, now=now.isoformat()),
            )
    checks.done()
    return first, last


def _change_admin_state(
    actor: User, host: Host, new: AdminState, why: str, now: datetime, via: str, verb: str
) -> Host:
    policy.require(actor, "host.change")
    why = checked_reason(why)
    verbs: dict[AdminState, Callable[..., bool]] = {
        AdminState.CORDONED: scheduling.cordon_host,
        AdminState.DRAINING: scheduling.drain_host,
        AdminState.IN_SERVICE: scheduling.return_host,
    }
    audited = ("admin_state", "repair_state", "state_reason")
    with transaction.atomic():
        before = audit.audited_fields(host, *audited)
        if not verbs[new](host, reason=why, now=now):
            host.refresh_from_db()
            raise _unchanged_state_refusal(host, new)
        host.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb=verb,
            target=host,
            why=why,
            before=before,
            after=audit.audited_fields(host, *audited),
        )
    scheduling.record_unserved_reservations(host.pool, now=now)
    return host


def _unchanged_state_refusal(host: Host, new: AdminState) -> OperationRejected:
    named = {"name": host.name, "state": host.admin_state.replace("_", " ")}
    if host.admin_state == new:
        return OperationRejected("host_has_this_state", named)
    return OperationRejected("host_cannot_become", {**named, "wanted": new.value.replace("_", " ")})


def _powered_on_refusal(host: Host) -> OperationRejected:
    return OperationRejected("host_is_not_off", {"name": host.name})


def cancel_maintenance(
    *, actor: User, host: Host, window: Any, now: datetime, why: str = "", via: str = "web"
) -> MaintenanceWindow:
    """Cancel an announced maintenance window.

    Raises Invalid, NotAllowed. Raises OperationRejected if the window was cancelled before.
    """
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
        if not scheduling.cancel_maintenance(row, now=now):
            raise OperationRejected("maintenance_is_cancelled")
        audit.record(
            actor=actor, via=via, now=now, verb="cancel_maintenance", target=host, before=before, why=why
        )
    scheduling.record_unserved_reservations(host.pool, now=now)
    row.pk = int(name)
    return row
