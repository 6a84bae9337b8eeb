"""Commands about one host: how its GPUs are, and what operators do about it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.errors import EXIT_NOT_FOUND, CliError
from cli.formatting import (
    DurationType,
    TimestampType,
    format_cores,
    format_gibibytes,
    format_local_time,
    relative_time,
)
from cli.request_options import parse_pairs
from cli.session import CliSession, cli, command

REASON_OPTION = click.option("--why", default="", help="Shown to everybody, and kept in the record.")
NETWORK_TEXTS = {
    "private": "only themselves",
    "internet": "the internet, nothing of the host",
    "host": "the host's",
}
RETURN_SYNONYMS = ("uncordon", "undrain", "resume")  # words of others for our return
PREVIEW_OPTION = click.option("--preview", is_flag=True, help="Only show whom it touches, and until when.")


class _HostGroup(click.Group):
    """Says which verb brings a host back to whom another scheduler has taught another word for it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in RETURN_SYNONYMS:
            raise click.UsageError(f"There is no {args[0]}: a host comes back with 'return'.", ctx)
        return super().resolve_command(ctx, args)


@cli.group(cls=_HostGroup)
def host() -> None:
    """One host: its GPUs, diagnostics, repair and maintenance."""


def host_path(name: str, verb: str) -> str:
    return f"hosts/{quote(name, safe='', errors='replace')}/{verb}/"


@command(host, "show")
@click.argument("name")
def show(session: CliSession, name: str) -> None:
    """One host: its states, what its agent says of it, and an agent that was turned away as it."""
    row = session.client.get(f"hosts/{quote(name, safe='', errors='replace')}/")
    if session.json:
        return output.print_json(row)
    now = datetime.now().astimezone()
    output.print_facts(_host_facts(row, now))
    for note in row.get("agent", {}).get("notes", ()):
        output.print_line(f"Can't: {note}")
    refused = row.get("refused_agent")
    if refused:
        boot = f" (boot {refused['boot_id']})" if refused["boot_id"] else ""
        output.print_line(
            f"Another agent was turned away {relative_time(refused['at'], now)}{boot}: {refused['reason']}"
        )
        if refused["quarantined"]:
            output.print_line(
                "It is given no work and hears no orders. Find the machine that it runs on and end it there; or, if that is the one"
                f" that should go on, start it with another token: gpupool host join {name}"
            )
    return None


def _host_facts(row: dict[str, Any], now: datetime) -> list[tuple[str, Any]]:
    """What an older portal does not say is left out."""
    agent: dict[str, Any] = row.get("agent", {})
    counts = Counter(row["gpus"])
    sizes = [
        format_cores(row["cpu_milli"]) if row.get("cpu_milli") else "",
        format_gibibytes(row["memory_mib"]) if row.get("memory_mib") else "",
    ]
    driver, cuda = agent.get("driver_version"), agent.get("cuda_version")
    apart = [
        row["isolation"],
        "a user id per team" if agent.get("users_per_team") else "",
        *_limits_text(agent),
    ]
    full = row.get("disk_full_since")
    return [
        ("name", row["name"]),
        ("pool", row["pool"]),
        ("GPUs", ", ".join(f"{count} x {model}" for model, count in sorted(counts.items()))),
        ("readings", "simulated" if row["simulated"] else "measured"),
        *((f"between GPUs, {each['way']}", each["gpus"]) for each in row.get("between_gpus", ())),
        *(
            (f"GPU {each['gpus']}" if each["gpus"] else "each GPU", each["words"])
            for each in row.get("of_gpus", ())
        ),
        ("CPU and memory", ", ".join(filter(None, sizes))),
        ("driver", f"{driver}{f', CUDA up to {cuda}' if cuda else ''}" if driver else ""),
        ("isolation", ", ".join(filter(None, apart))),
        ("lacking", ", ".join(row["isolation_lacking"])),
        ("network", NETWORK_TEXTS.get(agent.get("network", ""), agent.get("network", ""))),
        ("address", agent.get("address", "")),
        ("own diagnostics", ", ".join(agent.get("diagnostics", ()))),
        ("labels", ", ".join(f"{name}={value}" for name, value in sorted(row["labels"].items()))),
        ("agent", agent.get("version") or ("never joined" if agent else "")),
        ("boot", agent.get("boot_id", "")),
        ("last heard", relative_time(row["last_sync_at"], now)),
        ("lease", "revoked" if row.get("revoked_at") else row["lease_state"]),
        ("service", row["admin_state"].replace("_", " ")),
        ("repair", row["repair_state"]),
        ("why", row["state_reason"] or row.get("revoked_why", "")),
        ("disk", f"full since {format_local_time(full)}: it starts nothing new" if full else ""),
    ]


def _limits_text(agent: dict[str, Any]) -> list[str]:
    return [f"limits of {', '.join(agent['limits'])}"] if agent.get("limits") else []


@command(host, "diagnostics")
@click.argument("name")
@click.option("--gpu", type=int, help="Only of this one, by its index.")
def diagnostics(session: CliSession, name: str, gpu: int | None) -> None:
    """What diagnostics of its GPUs found, the newest first, with each check and its numbers."""
    rows = [row for row in session.client.pages(host_path(name, "diagnostics")) if gpu in (None, row["gpu"])]
    if session.json:
        return output.print_json(rows)
    now = datetime.now().astimezone()
    return output.print_table(
        ("GPU", "when", "why", "by", "result", "check", "says", "numbers"),
        (line for row in rows for line in _diagnostic_rows(row, now)),
        "No diagnostic yet. Have it look: gpupool host diagnose NAME",
    )


def _diagnostic_rows(row: dict[str, Any], now: datetime) -> list[tuple[Any, ...]]:
    """One line for each check; what it found as a whole on the first."""
    tool = f"{row['tool']}{' (simulated)' if row['simulated'] and row['tool'] != 'simulated' else ''}"
    head = (
        row["gpu"],
        relative_time(row["ended_at"] or row["created_at"], now),
        row["why"].replace("_", " "),
        tool,
        row["state"],
    )
    said = {True: "passed", False: "failed", None: "measured"}
    checks = [
        (
            each["name"],
            " ".join(filter(None, [said[each["passed"]], each["detail"]])),
            _format_numbers(each["numbers"]),
        )
        for each in row["checks"]
    ]
    if row["detail"] or not checks:
        checks.insert(0, ("", row["detail"], ""))
    blank = ("",) * len(head)
    return [(*(head if at == 0 else blank), *check) for at, check in enumerate(checks)]


def _format_numbers(numbers: dict[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value:,.6g}"
        if isinstance(value, float)
        else f"{name.replace('_', ' ')} {value}"
        for name, value in numbers.items()
    )


@command(host, "events")
@click.argument("name")
def events(session: CliSession, name: str) -> None:
    """Every hardware event of a host, the newest first."""
    rows = list(session.client.pages(host_path(name, "events")))
    if session.json:
        return output.print_json(rows)
    return _print_events(rows, datetime.now().astimezone())


def _print_events(rows: list[dict[str, Any]], now: datetime) -> None:
    output.print_table(
        ("when", "GPU", "event", "meaning", "detail", "done"),
        (
            (
                relative_time(e["at"], now),
                "" if e["gpu"] is None else e["gpu"],
                e["code"],
                e["meaning"],
                e["detail"],
                e["action"],
            )
            for e in rows
        ),
        "No hardware event.",
    )


@command(host, "health")
@click.argument("name")
def health(session: CliSession, name: str) -> None:
    """How its GPUs are, what they reported, processes of no workload on them, and announced maintenance."""
    found = session.client.get(host_path(name, "health"))
    if session.json:
        return output.print_json(found)
    now = datetime.now().astimezone()
    output.print_table(
        ("GPU", "model", "repair", "why", "last diagnostic", "when", "found"),
        (
            (row["gpu"], row["model"], row["repair_state"], row["reason"], *_last_diagnostic(row, now))
            for row in found["gpus"]
        ),
        "No GPU reported.",
    )
    for gone in found.get("missing_gpus", ()):
        before = f"; before that {gone['repair_state']}: {gone['reason']}" if gone["reason"] else ""
        output.print_line(
            f"GPU {gone['gpu']} ({gone['uuid']}) is missing since {format_local_time(gone['missing_since'])}{before}"
        )
    if found.get("revoked_at"):
        why = f" ({found['revoked_why']})" if found["revoked_why"] else ""
        output.print_line(
            f"Its credential was revoked {relative_time(found['revoked_at'], now)}{why}; to join again: gpupool host join {name}"
        )
    if found["state_reason"]:
        output.print_line(f"Not simply in service: {found['state_reason']}")
    _print_events(found["events"], now)
    if found["strays"]:
        output.print_line(f"Processes of no workload: {found['strays']}")
        output.print_table(
            ("GPU", "pid", "user", "name", "MiB", "since", "done"),
            (
                (
                    s["gpu"],
                    s["pid"],
                    s["user"],
                    s["name"],
                    s["memory_mib"],
                    format_local_time(s["first_seen"]),
                    s["done"] or "shown",
                )
                for s in found["stray_processes"]
            ),
            "Operators and auditors see whose they are.",
        )
    for window in found["maintenance"]:
        output.print_line(
            f"Away from {format_local_time(window['start'])} to {format_local_time(window['end'])}: {window['reason']} (window {window['id']})"
        )
    return None


def _last_diagnostic(row: dict[str, Any], now: datetime) -> tuple[str, str, str]:
    last = row["last_diagnostic"]
    if last is None:
        return "none yet", "", ""
    simulated = " (simulated)" if last["simulated"] else ""
    return (
        f"{last['state']}{simulated}",
        relative_time(last["ended_at"] or last["created_at"], now),
        last["detail"],
    )


@command(host, "diagnose")
@click.argument("name")
@click.option("--gpu", type=int, help="Its index; every GPU that nobody holds unless given.")
@REASON_OPTION
def diagnose(session: CliSession, name: str, gpu: int | None, why: str) -> None:
    """Have it look at a GPU: memory, bandwidth, arithmetic. Passed, it comes back; failed, it is out."""
    body: dict[str, Any] = {"why": why} | ({} if gpu is None else {"gpu": gpu})
    rows = session.client.post(host_path(name, "diagnose"), body)
    if session.json:
        return output.print_json(rows)
    listed = ", ".join(str(row["gpu"]) for row in rows)
    return output.print_line(f"Being looked at: GPU {listed}. See: gpupool host health {name}")


@command(host, "geometry")
@click.argument("name")
def geometry(session: CliSession, name: str) -> None:
    """How its GPUs are split into MIG instances, what they can be, and what came of the last change."""
    rows = session.client.get(host_path(name, "geometry"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("GPU", "geometry", "can have", "last change", "says"),
        (
            (
                row["gpu"],
                row["geometry"] or "split, no instances",
                ", ".join(f"{each['most']}x{each['name']}" for each in row["profiles"]) or "no other",
                f"{last['after']}: {last['state']}" if (last := row["last_change"]) else "none",
                last["detail"] if last else "",
            )
            for row in rows
        ),
        "No GPU reported.",
    )


@command(host, "change-geometry")
@click.argument("name")
@click.argument("gpu", type=int)
@click.argument("wanted", metavar="GEOMETRY")
@PREVIEW_OPTION
@REASON_OPTION
def change_geometry(session: CliSession, name: str, gpu: int, wanted: str, preview: bool, why: str) -> None:
    """Split a GPU otherwise: GEOMETRY is whole, or such as 1x3g.40gb+4x1g.10gb. Its work leaves first."""
    body = {"gpu": gpu, "geometry": wanted}
    if preview:
        found = session.client.post(host_path(name, "geometry/preview"), body)
        if session.json:
            return output.print_json(found)
        output.print_line(
            f"GPU {gpu} of {name}: {found['before'] or 'whole'} becomes {found['after'] or 'whole'}."
        )
        output.print_table(
            ("workload", "team", "owner", "what happens", "gone at the latest"),
            (
                (
                    w["name"],
                    w["team"],
                    w["owner"],
                    "leaves" if w["leaves"] else "runs to its end",
                    format_local_time(w["by"]),
                )
                for w in found["work"]
            ),
            "Nothing runs on it.",
        )
        begins = "at once" if found["free_by"] is None else f"by {format_local_time(found['free_by'])}"
        unkept = f" Could not be kept without it: {', '.join(found['unkept'])}." if found["unkept"] else ""
        return output.print_line(
            f"Reservations bound to it: {found['reservations']}.{unkept} Its host begins {begins}."
        )
    row = session.client.post(host_path(name, "geometry"), {**body, "why": why})
    said = f"GPU {gpu} of {name} takes nothing new and becomes {row['after']} once nothing holds it."
    return (
        output.print_json(row)
        if session.json
        else output.print_line(f"{said} See: gpupool host geometry {name}")
    )


@command(host, "withdraw-geometry")
@click.argument("name")
@click.argument("gpu", type=int)
@REASON_OPTION
def withdraw_geometry(session: CliSession, name: str, gpu: int, why: str) -> None:
    """Leave a GPU as it is, while its host was not told yet."""
    row = session.client.post(host_path(name, "geometry/withdraw"), {"gpu": gpu, "why": why})
    output.print_json(row) if session.json else output.print_line(
        f"GPU {gpu} of {name} stays {row['before']}."
    )


@command(host, "return-gpu")
@click.argument("name")
@click.argument("gpu", type=int)
@REASON_OPTION
def return_gpu(session: CliSession, name: str, gpu: int, why: str) -> None:
    """A GPU back in service, whatever was found."""
    _post_gpu_verb(session, name, "return-gpu", gpu, why)


@command(host, "take-out-gpu")
@click.argument("name")
@click.argument("gpu", type=int)
@REASON_OPTION
def take_out_gpu(session: CliSession, name: str, gpu: int, why: str) -> None:
    """A GPU out until it is returned; its work is stopped and starts elsewhere."""
    _post_gpu_verb(session, name, "take-out-gpu", gpu, why)


@command(host, "forget-gpu")
@click.argument("name")
@click.argument("uuid")
@REASON_OPTION
def forget_gpu(session: CliSession, name: str, uuid: str, why: str) -> None:
    """A GPU that is missing is gone for good: it is listed no more."""
    row = session.client.post(host_path(name, "forget-gpu"), {"gpu": uuid, "why": why})
    output.print_json(row) if session.json else output.print_line(
        f"GPU {row['gpu']} of {name} ({row['uuid']}) is listed no more."
    )


def _post_gpu_verb(session: CliSession, name: str, verb: str, gpu: int, why: str) -> None:
    row = session.client.post(host_path(name, verb), {"gpu": gpu, "why": why})
    output.print_json(row) if session.json else output.print_line(
        f"GPU {gpu} of {name} is {row['repair_state']}."
    )


@command(host, "cordon")
@click.argument("name")
@REASON_OPTION
@PREVIEW_OPTION
def cordon(session: CliSession, name: str, why: str, preview: bool) -> None:
    """Nothing new starts there; what runs goes on."""
    _post_host_verb(session, name, "cordon", why, preview)


@command(host, "drain")
@click.argument("name")
@REASON_OPTION
@PREVIEW_OPTION
def drain(session: CliSession, name: str, why: str, preview: bool) -> None:
    """Nothing new starts there, and what runs is asked to go."""
    _post_host_verb(session, name, "drain", why, preview)


@command(host, "return")
@click.argument("name")
@REASON_OPTION
@PREVIEW_OPTION
def return_host(session: CliSession, name: str, why: str, preview: bool) -> None:
    """Back in service."""
    _post_host_verb(session, name, "return", why, preview)


@command(host, "revoke")
@click.argument("name")
@REASON_OPTION
@PREVIEW_OPTION
def revoke(session: CliSession, name: str, why: str, preview: bool) -> None:
    """Cut its agent off at once: what runs there stops when its lease ends. It joins again with: gpupool host join NAME"""
    _post_host_verb(session, name, "revoke", why, preview)


@command(cli, "host-is-off")
@click.argument("name")
@click.option("--why", default="", help="What you saw; kept in the audit log. Needed, but for --preview.")
@PREVIEW_OPTION
def host_is_off(session: CliSession, name: str, why: str, preview: bool) -> None:
    """You have seen a host powered off: its work starts elsewhere at once. For operators."""
    require_reason(why, preview)
    _post_host_verb(session, name, "off", why, preview)


@command(host, "join")
@click.argument("name")
@click.option("--pool", help="Of a host that is new.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of a host that is new; asks can require them.",
)
def join(session: CliSession, name: str, pool: str | None, labels: tuple[str, ...]) -> None:
    """The one command with which a machine joins as this host; with --pool a new host is made known first."""
    known = _ensure_host(session, name)
    if known is None and pool is None:
        raise CliError(
            f"There is no host {name}; give --pool to make it known, or see: gpupool hosts", EXIT_NOT_FOUND
        )
    if known is not None and pool not in (None, known["pool"]):
        raise CliError(
            f"{name} is a host of the pool {known['pool']} already; leave --pool out for another token."
        )
    if known is not None and labels:
        raise click.UsageError(f"{name} is known already; --label is for one that is new.")
    if known is None:
        made = session.client.post("hosts/", {"pool": pool, "name": name, "labels": parse_pairs(labels)})
    else:
        made = session.client.post(host_path(name, "join-token"))
    if session.json:
        return output.print_json(made)
    begun = (
        f"{name} is known in the pool {pool}."
        if known is None
        else f"Tokens of {name} not used so far stopped working."
    )
    output.print_line(f"{begun} Run this on the machine, once, by {format_local_time(made['good_until'])}:")
    output.print_line(f"\n  {made['command']}\n")
    output.print_line("Or, in a checkout of gpupool, to try it:")
    output.print_line(f"\n  {made['checkout_command']}\n")
    if made.get("simulated_as"):
        output.print_line(
            f"Its GPUs were simulated: add {made['simulated_as']} to that, and it has the same again."
        )
    elif known is None or not known["gpus"]:
        output.print_line(
            "Without a GPU, add --simulate 8xH100-80GB to that: the host is then marked as simulated everywhere."
        )
    output.print_line(
        "Checkpoints and homes lie in the agent's state folder unless --homes names a folder that all hosts of the pool share."
        " Without one, work that is moved to or from this host does not find its last checkpoint."
    )
    if known is not None and known["lease_state"] in ("alive", "suspect"):
        output.print_line(f"The agent of {name} that speaks now is turned away once another one has joined.")
    return None


def _ensure_host(session: CliSession, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = session.client.get(f"hosts/{quote(name, safe='', errors='replace')}/")
    except CliError as problem:
        if problem.code != EXIT_NOT_FOUND:
            raise
        return None
    return found


PREVIEW_TITLES = {
    "cordon": "Cordon {}",
    "drain": "Drain {}",
    "return": "Return {} to service",
    "revoke": "Revoke the credential of {}",
    "off": "{} is powered off",
    "maintenance": "Maintenance of {}",
}
VERB_PATHS = {"off": "attest-off"}
DISRUPTIVE_VERBS = ("cordon", "drain", "revoke")


def _post_host_verb(session: CliSession, name: str, verb: str, why: str, preview: bool) -> None:
    if preview:
        return print_preview(session, name, {"verb": verb})
    row = session.client.post(host_path(name, VERB_PATHS.get(verb, verb)), {"why": why})
    if session.json:
        return output.print_json(row)
    # An older portal does it as well, and says less.
    output.print_line(
        row.get("said") or f"{row['name']} is {row['admin_state'].replace('_', ' ')}, {row['repair_state']}."
    )
    return (
        print_affected_workloads(row["still_there"])
        if verb in DISRUPTIVE_VERBS and "still_there" in row
        else None
    )


def print_preview(session: CliSession, name: str, body: dict[str, Any]) -> None:
    found = session.client.post(host_path(name, "preview"), body)
    if session.json:
        return output.print_json(found)
    output.print_line(f"{PREVIEW_TITLES[found['verb']].format(name)}: {found['text']}")
    print_affected_workloads(found["work"])
    if found["gpus"] is not None:
        away = {"return": "come back to the pool", "maintenance": "are away meanwhile"}
        output.print_line(f"GPUs that {away.get(found['verb'], 'leave the pool')}: {found['gpus']}.")
    print_affected_reservations(found)
    if found["last_end"]:
        output.print_line(f"The last ends by {format_local_time(found['last_end'])} at the latest.")
    return output.print_line("Nothing is changed; without --preview it is done.")


def print_affected_workloads(rows: list[dict[str, Any]]) -> None:
    output.print_table(
        ("workload", "team", "owner", "what happens", "at the latest"),
        (
            (
                w["name"],
                w["team"],
                w["owner"],
                w["words"],
                format_local_time(w["by"]) if w["by"] else "at once",
            )
            for w in rows
        ),
        "Nothing runs on it.",
    )


def print_affected_reservations(found: dict[str, Any]) -> None:
    if found["reservations"]:
        listed = ", ".join(
            f"{r['name']} ({r['team']}, until {format_local_time(r['end'])})" for r in found["reservations"]
        )
        output.print_line(f"Reservations on its GPUs, which get others: {listed}.")
    if found.get("unkept"):
        listed = ", ".join(
            f"{r['name']} ({r['team']}, from {format_local_time(r['start'])})" for r in found["unkept"]
        )
        output.print_line(f"Coming reservations that could not be kept: {listed}.")
    elif found.get("unkept") is not None:
        output.print_line("Every coming reservation can be kept without it.")


def require_reason(why: str, preview: bool) -> None:
    if not why and not preview:
        raise click.UsageError("Give the reason: --why.")


@command(host, "maintenance")
@click.argument("name")
@click.option("--start", type=TimestampType(), required=True, help="Such as 'tomorrow 08:00'.")
@click.option("--end", type=TimestampType(), required=True)
@click.option(
    "--why",
    default="",
    help="Shown to everybody; owners of what it touches are told. Needed, but for --preview.",
)
@PREVIEW_OPTION
def maintenance(session: CliSession, name: str, start: str, end: str, why: str, preview: bool) -> None:
    """Announce a window in which it is away: nothing is planned into it."""
    require_reason(why, preview)
    if preview:
        return print_preview(session, name, {"verb": "maintenance", "start": start, "end": end})
    row = session.client.post(host_path(name, "maintenance"), {"start": start, "end": end, "why": why})
    if session.json:
        return output.print_json(row)
    output.print_line(
        f"{name} is away from {format_local_time(row['start'])} to {format_local_time(row['end'])}: nothing is planned into it."
    )
    if "work" in row:  # an older portal does not say
        print_affected_workloads(row["work"])
        print_affected_reservations({**row, "verb": "maintenance"})
        output.print_line(f"Take it back with: gpupool host cancel-maintenance {name} {row['id']}")
    return None


@command(host, "cancel-maintenance")
@click.argument("name")
@click.argument("window", type=int)
@REASON_OPTION
def cancel_maintenance(session: CliSession, name: str, window: int, why: str) -> None:
    """Take an announced window back; its number is in: gpupool host health NAME"""
    row = session.client.post(host_path(name, "maintenance/cancel"), {"window": window, "why": why})
    output.print_json(row) if session.json else output.print_line(
        f"The window from {format_local_time(row['start'])} is taken back."
    )


@command(cli, "repair-policy")
@click.argument("pool")
@click.option("--strays", "stray_action", type=click.Choice(["report", "warn", "end"]))
@click.option(
    "--tool",
    "diagnostic_tool",
    help="auto, own, dcgm, or a name that its hosts have for their operator's own.",
)
@click.option("--deadline", "diagnostic_seconds", type=DurationType(), help="For one GPU, such as 10m.")
@click.option("--idle-every", "diagnose_every_hours", type=int, help="Hours; 0: never.")
@click.option("--after-quarantine/--not-after-quarantine", "diagnose_after_quarantine", default=None)
def repair_policy(session: CliSession, pool: str, **given: Any) -> None:
    """What a pool does by itself about processes of no workload and GPUs that are not to be trusted."""
    path = f"pools/{quote(pool, safe='', errors='replace')}/repair-policy/"
    change = {name: value for name, value in given.items() if value is not None}
    row = session.client.put(path, change) if change else session.client.get(path)
    if session.json:
        return output.print_json(row)
    return output.print_facts([(name.replace("_", " "), str(value)) for name, value in row.items()])
