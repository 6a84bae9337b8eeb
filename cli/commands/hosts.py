"""Define the commands about one host: its state and health, joining, and actions of operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.errors import EXIT_NOT_FOUND, CliError
from cli.formatting import format_cores, format_gibibytes, format_local_time, relative_time
from cli.host_group import (
    PREVIEW_OPTION,
    REASON_OPTION,
    host,
    host_path,
    print_affected_workloads,
    print_preview,
    require_reason,
)
from cli.request_options import parse_pairs
from cli.session import CliSession, cli, command

NETWORK_TEXTS = {
    "private": "loopback only",
    "internet": "the internet, but not the host",
    "host": "the host's network",
}


@command(host, "show")
@click.argument("name")
def show(session: CliSession, name: str) -> None:
    """Show one host: its states, its agent's report, and any rejected second agent."""
    row = session.client.get(f"hosts/{quote(name, safe='', errors='replace')}/")
    if session.json:
        return output.print_json(row)
    now = datetime.now().astimezone()
    output.print_facts(_host_facts(row, now))
    for note in row.get("agent", {}).get("notes", ()):
        output.print_line(f"Note: {note}")
    refused = row.get("refused_agent")
    if refused:
        boot = f" (boot {refused['boot_id']})" if refused["boot_id"] else ""
        output.print_line(
            f"Another agent was rejected {relative_time(refused['at'], now)}{boot}: {refused['reason']}"
        )
        if refused["quarantined"]:
            output.print_line(
                "It gets no work and no orders. Find its machine and stop the agent there. "
                "If that agent should be the host's agent, "
                f"start it with another token: gpupool host join {name}"
            )
    return None


# Not split: it is only a list with one expression per line of output.
def _host_facts(row: dict[str, Any], now: datetime) -> list[tuple[str, Any]]:
    """Return the (label, value) pairs to print. Fields that an older portal does not send are left out."""
    agent: dict[str, Any] = row.get("agent", {})
    counts = Counter(row["gpus"])
    sizes = [
        format_cores(row["cpu_milli"]) if row.get("cpu_milli") else "",
        format_gibibytes(row["memory_mib"]) if row.get("memory_mib") else "",
    ]
    driver, cuda = agent.get("driver_version"), agent.get("cuda_version")
    isolation = [
        row["isolation"],
        "a user id per team" if agent.get("users_per_team") else "",
        *_limits_text(agent),
    ]
    full_since = row.get("disk_full_since")
    return [
        ("name", row["name"]),
        ("pool", row["pool"]),
        ("GPUs", ", ".join(f"{count} x {model}" for model, count in sorted(counts.items()))),
        ("readings", "simulated" if row["simulated"] else "measured"),
        *((f"between GPUs, {group['way']}", group["gpus"]) for group in row.get("between_gpus", ())),
        *(
            (f"GPU {group['gpus']}" if group["gpus"] else "each GPU", group["words"])
            for group in row.get("of_gpus", ())
        ),
        ("CPU and memory", ", ".join(filter(None, sizes))),
        ("driver", f"{driver}{f', CUDA up to {cuda}' if cuda else ''}" if driver else ""),
        ("isolation", ", ".join(filter(None, isolation))),
        ("lacking", ", ".join(row["isolation_lacking"])),
        ("network of workloads", NETWORK_TEXTS.get(agent.get("network", ""), agent.get("network", ""))),
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
        (
            "disk",
            f"full since {format_local_time(full_since)}: nothing new starts here" if full_since else "",
        ),
    ]


def _limits_text(agent: dict[str, Any]) -> list[str]:
    return [f"limits of {', '.join(agent['limits'])}"] if agent.get("limits") else []


@command(host, "events")
@click.argument("name")
def events(session: CliSession, name: str) -> None:
    """Show all hardware events of a host, newest first."""
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
    """Show the host's GPUs, their events, processes outside workloads, and announced maintenance."""
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
        since = format_local_time(gone["missing_since"])
        output.print_line(f"GPU {gone['gpu']} ({gone['uuid']}) is missing since {since}{before}")
    if found.get("revoked_at"):
        why = f" ({found['revoked_why']})" if found["revoked_why"] else ""
        output.print_line(
            f"Its credential was revoked {relative_time(found['revoked_at'], now)}{why}; "
            f"to join again: gpupool host join {name}"
        )
    if found["state_reason"]:
        output.print_line(f"State: {found['state_reason']}")
    _print_events(found["events"], now)
    if found["strays"]:
        output.print_line(f"Processes outside workloads: {found['strays']}")
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
            "Operators and auditors see the owners of these processes.",
        )
    _print_reading_faults(found.get("reading_faults", ()))
    for window in found["maintenance"]:
        output.print_line(
            f"Away from {format_local_time(window['start'])} to {format_local_time(window['end'])}: "
            f"{window['reason']} (window {window['id']})"
        )
    return None


def _print_reading_faults(faults: Sequence[dict[str, Any]]) -> None:
    """Print the faulty readings of the last 7 days. Portals of earlier versions do not send them."""
    if not faults:
        return
    output.print_line("Faulty readings of the last 7 days, which are not part of any figure:")
    output.print_table(
        ("reading", "problem", "source", "number", "last value", "last"),
        (
            (
                f["reading"],
                f["kind"],
                f["source"],
                f["count"],
                f["last_value"],
                format_local_time(f["last_at"]),
            )
            for f in faults
        ),
        "",
    )


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


@command(host, "dcgm")
@click.argument("name")
@click.option("--url", help="Read the dcgm-exporter at this URL, such as http://gpu-01:9400/metrics.")
@click.option("--remove", is_flag=True, help="Stop reading it.")
@REASON_OPTION
def dcgm(session: CliSession, name: str, url: str | None, remove: bool, why: str) -> None:
    """Show, enter, change or remove the dcgm-exporter of a host, which fills readings that NVML lacks."""
    if url is not None and remove:
        raise click.UsageError("Give only one of --url and --remove.")
    if remove:
        row = session.client.post(host_path(name, "dcgm/remove"), {"why": why})
    elif url is not None:
        row = session.client.put(host_path(name, "dcgm"), {"url": url, "why": why})
    else:
        row = session.client.get(host_path(name, "dcgm"))
    if session.json:
        return output.print_json(row)
    if not row["url"]:
        return output.print_line(f"No dcgm-exporter of {name} is read.")
    now = datetime.now().astimezone()
    return output.print_facts(
        [
            ("URL", row["url"]),
            ("last read", relative_time(row["succeeded_at"], now) if row["succeeded_at"] else "not yet"),
            ("problem", row["problem_text"]),
            ("fields with a value", row["fields_read"]),
            ("GPUs and MIG instances", row["units_read"]),
            ("lines that can't be read", row["unreadable_lines"]),
            ("refused GPUs", row["refused_gpus"]),
        ]
    )


@command(host, "cordon")
@click.argument("name")
@REASON_OPTION
@PREVIEW_OPTION
def cordon(session: CliSession, name: str, why: str, preview: bool) -> None:
    """Start nothing new on a host; running work continues."""
    _post_host_verb(session, name, "cordon", why, preview)


@command(host, "drain")
@click.argument("name")
@REASON_OPTION
@PREVIEW_OPTION
def drain(session: CliSession, name: str, why: str, preview: bool) -> None:
    """Start nothing new on a host, and evict its preemptible work. Other work runs to its end."""
    _post_host_verb(session, name, "drain", why, preview)


@command(host, "return")
@click.argument("name")
@REASON_OPTION
@PREVIEW_OPTION
def return_host(session: CliSession, name: str, why: str, preview: bool) -> None:
    """Return the host to service."""
    _post_host_verb(session, name, "return", why, preview)


@command(host, "revoke")
@click.argument("name")
@REASON_OPTION
@PREVIEW_OPTION
def revoke(session: CliSession, name: str, why: str, preview: bool) -> None:
    """Revoke the agent's credential at once; its work stops when the leases end.

    To join again: gpupool host join NAME
    """
    _post_host_verb(session, name, "revoke", why, preview)


@command(cli, "host-is-off")
@click.argument("name")
@click.option(
    "--why", default="", help="How it was verified; stored in the audit log. Required without --preview."
)
@PREVIEW_OPTION
def host_is_off(session: CliSession, name: str, why: str, preview: bool) -> None:
    """Confirm that a host is powered off: its work starts elsewhere at once. For operators."""
    require_reason(why, preview)
    _post_host_verb(session, name, "off", why, preview)


@command(host, "join")
@click.argument("name")
@click.option("--pool", help="Pool of a new host.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="Label of a new host; requests can require it.",
)
def join(session: CliSession, name: str, pool: str | None, labels: tuple[str, ...]) -> None:
    """Show the command with which a machine joins as this host; --pool creates a new host first."""
    known = _find_host(session, name)
    if known is None and pool is None:
        raise CliError(
            f"There is no host {name}; give --pool to add it, or see: gpupool hosts", EXIT_NOT_FOUND
        )
    if known is not None and pool not in (None, known["pool"]):
        raise CliError(
            f"{name} is a host of the pool {known['pool']} already; leave --pool out for another token."
        )
    if known is not None and labels:
        raise click.UsageError(f"{name} exists already; --label is only for a new host.")
    if known is None:
        made = session.client.post("hosts/", {"pool": pool, "name": name, "labels": parse_pairs(labels)})
    else:
        made = session.client.post(host_path(name, "join-token"))
    if session.json:
        return output.print_json(made)
    _print_join_command(name, pool, known, made)
    if known is not None and known["lease_state"] in ("alive", "suspect"):
        output.print_line(f"The present agent of {name} is rejected when another agent has joined.")
    return None


def _print_join_command(
    name: str, pool: str | None, known: dict[str, Any] | None, made: dict[str, Any]
) -> None:
    """Print the command to run on the machine. ``known`` is the host, or None if this command created it."""
    state = (
        f"{name} is in the pool {pool}." if known is None else f"Unused tokens of {name} are no longer valid."
    )
    output.print_line(f"{state} Run this on the machine, once, by {format_local_time(made['good_until'])}:")
    output.print_line(f"\n  {made['command']}\n")
    output.print_line("Or, in a checkout of gpupool, to try it:")
    output.print_line(f"\n  {made['checkout_command']}\n")
    if made.get("simulated_as"):
        output.print_line(f"Its GPUs were simulated: add {made['simulated_as']} to simulate them again.")
    elif known is None or not known["gpus"]:
        output.print_line(
            "On a machine without a GPU, add --simulate 8xH100-80GB to the command: "
            "the host is then marked as simulated everywhere."
        )
    output.print_line(
        "Checkpoints and homes are in the agent's state folder, "
        "unless --homes names a folder that all hosts of the pool share. "
        "Without a shared folder, work that moves to or from this host does not find its last checkpoint."
    )


def _find_host(session: CliSession, name: str) -> dict[str, Any] | None:
    """Return the host; None if there is no host of this name."""
    try:
        found: dict[str, Any] = session.client.get(f"hosts/{quote(name, safe='', errors='replace')}/")
    except CliError as problem:
        if problem.code != EXIT_NOT_FOUND:
            raise
        return None
    return found


VERB_PATHS = {"off": "attest-off"}
DISRUPTIVE_VERBS = ("cordon", "drain", "revoke")


def _post_host_verb(session: CliSession, name: str, verb: str, why: str, preview: bool) -> None:
    if preview:
        return print_preview(session, name, {"verb": verb})
    row = session.client.post(host_path(name, VERB_PATHS.get(verb, verb)), {"why": why})
    if session.json:
        return output.print_json(row)
    # An older portal does not send "said", the result in words.
    output.print_line(
        row.get("said") or f"{row['name']} is {row['admin_state'].replace('_', ' ')}, {row['repair_state']}."
    )
    return (
        print_affected_workloads(row["still_there"])
        if verb in DISRUPTIVE_VERBS and "still_there" in row
        else None
    )
