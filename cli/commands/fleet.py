"""Define the commands about all hosts: status, hosts, isolation, homes, usage, and system health."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.formatting import format_bytes, format_gpus, gib_or_none, relative_time
from cli.request_options import TIMESTAMP_TYPE
from cli.session import CliSession, cli, command

HEALTH_STATES = ("good", "unknown", "attention", "bad")


@cli.group()
def pool() -> None:
    """Set which isolation pools require of their hosts and as whom their work runs; remove pools."""


@cli.group()
def volume() -> None:
    """Show homes and their sizes."""


@command(cli, "status")
def status(session: CliSession) -> None:
    """Show the GPUs of each pool: total, held, free whole GPUs, and free parts of split GPUs."""
    pools = session.client.get("pools/")
    if session.json:
        return output.print_json(pools)
    rows = [
        (
            pool["slug"],
            pool["kind"],
            model["model"],
            model["gpus"],
            format_gpus(model["held_gpus"]),
            format_gpus(model["free_gpus"] - model["free_in_parts_gpus"]),
            format_gpus(model["free_in_parts_gpus"]) if model["free_in_parts_gpus"] else "",
        )
        for pool in pools
        for model in pool["models"]
    ]
    return output.print_table(
        ("pool", "kind", "model", "in all", "held", "free", "free in slices"), rows, "No pool has GPUs yet."
    )


@command(cli, "hosts")
@click.option("--pool", help="Only hosts of this pool.")
def hosts(session: CliSession, pool: str | None) -> None:
    """Show hosts and their states."""
    rows = list(session.client.pages("hosts/", pool=pool))
    if session.json:
        return output.print_json(rows)
    now = datetime.now().astimezone()
    return output.print_table(
        ("host", "pool", "GPUs", "model", "lease", "service", "repair", "last heard", "why", "readings"),
        (
            (
                row["name"],
                row["pool"],
                len(row["gpus"]),
                ", ".join(sorted(set(row["gpus"]))),
                "revoked" if row.get("revoked_at") else row["lease_state"],
                row["admin_state"].replace("_", " "),
                row["repair_state"],
                relative_time(row["last_sync_at"], now),
                _unavailability_reason(row),
                "simulated" if row["simulated"] else "measured",
            )
            for row in rows
        ),
        "No hosts yet.",
    )


def _unavailability_reason(row: dict[str, Any]) -> str:
    """Return the reason why the host takes no work.

    The reason of a suspect, silent or revoked host comes first. If an operator or a repair had closed the
    host before, that reason follows.
    """
    quiet = {"suspect": "one renewal late", "silent": "its agent is silent"}.get(row["lease_state"], "")
    if row.get("revoked_at"):
        why = f" ({row['revoked_why']})" if row["revoked_why"] else ""
        quiet = f"its credential was revoked{why}; to join again: gpupool host join {row['name']}"
    is_open = row["admin_state"] == "in_service" and row["repair_state"] == "well"
    kept = "" if is_open and quiet else row["state_reason"]
    return f"{quiet}; before that: {kept}" if quiet and kept else quiet or kept


@command(pool, "isolation")
@click.argument("slug")
@click.argument("level", required=False, type=click.Choice(["none", "sandbox", "team_users", "limits"]))
@click.option("--reason", default="", help="Stored in the audit log.")
def pool_isolation(session: CliSession, slug: str, level: str | None, reason: str) -> None:
    """Show the isolation that a pool requires and the parts that each host lacks.

    LEVEL changes the requirement.
    """
    path = f"pools/{quote(slug, safe='', errors='replace')}/"
    if level is not None:
        session.client.put(f"{path}isolation/", {"isolation": level, "why": reason})
    pool_row = session.client.get(path)
    rows = list(session.client.pages("hosts/", pool=slug))
    if session.json:
        return output.print_json({"isolation": pool_row["isolation"], "hosts": rows})
    output.print_line(f"Hosts of {slug} need at least: {pool_row['isolation']}.")
    return output.print_table(
        ("host", "isolation", "level", "lacks"),
        (
            (row["name"], row["isolation"], row["isolation_level"], ", ".join(row["isolation_lacking"]))
            for row in rows
        ),
        "No hosts yet.",
    )


@command(pool, "work")
@click.argument("slug")
@click.option(
    "--runs-as", type=click.Choice(["team", "person"]), help="The Unix user of new work on the hosts."
)
@click.option("--perf-events/--no-perf-events", default=None, help="Whether work may use perf_event_open.")
@click.option("--home-limit", help="The largest size of a new home in GiB, or none.")
@click.option("--reason", default="", help="Stored in the audit log.")
def pool_work(
    session: CliSession,
    slug: str,
    runs_as: str | None,
    perf_events: bool | None,
    home_limit: str | None,
    reason: str,
) -> None:
    """Show as whom the work of a pool runs, if it may use perf_event_open, and the limit of homes.

    Options change these settings for new work and new homes.
    """
    path = f"pools/{quote(slug, safe='', errors='replace')}/"
    given = {"runs_as": runs_as, "perf_events": perf_events}
    body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if home_limit is not None:
        body["home_limit_gib"] = gib_or_none(home_limit)
    found = session.client.put(f"{path}work/", {**body, "why": reason}) if body else session.client.get(path)
    if session.json:
        return output.print_json({name: found[name] for name in ("runs_as", "perf_events", "home_limit_gib")})
    limit = found["home_limit_gib"]
    return output.print_facts(
        [
            ("work runs as", {"team": "its team", "person": "its owner"}[found["runs_as"]]),
            ("perf_event_open", "allowed" if found["perf_events"] else "blocked"),
            ("largest home", f"{limit} GiB" if limit else "no limit"),
        ]
    )


@command(volume, "list")
def list_volumes(session: CliSession) -> None:
    """List your home on each storage, and the homes of members of teams that you lead."""
    rows = list(session.client.pages("volumes/"))
    if session.json:
        return output.print_json(rows)
    now = datetime.now().astimezone()
    return output.print_table(
        ("home", "hosts", "size", "limit", "files", "in use by", "last change", "measured"),
        (
            (
                row["name"],
                ", ".join(row["hosts"]),
                format_bytes(row["size_bytes"], row["size_complete"]),
                format_bytes(row["limit_bytes"]) if row.get("limit_bytes") else "",
                "unknown" if row["files"] is None else f"{row['files']:,}",
                row["running_workloads"],
                relative_time(row["changed_at"], now) if row["changed_at"] else "unknown",
                relative_time(row["measured_at"], now) if row["measured_at"] else "not yet",
            )
            for row in rows
        ),
        "No home yet: your first notebook or job creates it.",
    )


@command(cli, "usage")
@click.option("--by", type=click.Choice(["team", "project", "user", "type", "model"]), default="team")
@click.option("--start", type=TIMESTAMP_TYPE, help="Default: a week ago.")
@click.option("--end", type=TIMESTAMP_TYPE, help="Default: now.")
def usage(session: CliSession, by: str, start: str | None, end: str | None) -> None:
    """Show the GPU-hours held and used, as far as you may see them."""
    answer = session.client.get("usage/", by=by, start=start, end=end)
    if session.json:
        return output.print_json(answer)
    rows = (
        (
            line["name"],
            f"{line['gpu_hours']:,.1f}",
            "unknown" if line["used_gpu_hours"] is None else f"{line['used_gpu_hours']:,.1f}",
            "unknown" if line["coverage"] is None else f"{line['coverage']:.0%}",
        )
        for line in answer["lines"]
    )
    output.print_table((by, "hours", "used", "measured"), rows, "No GPU was held in that time.")
    if "scope" in answer:  # a portal of version 0.1 does not send it
        output.print_line(answer["scope"])
    return None


@command(cli, "system")
@click.option("--state", type=click.Choice(HEALTH_STATES), multiple=True, help="Only checks in this state.")
def system(session: CliSession, state: tuple[str, ...]) -> None:
    """Show the checks of the installation: processes, queues, lags, storage, certificates, backups."""
    health = session.client.get("system/")
    checks = [each for each in health["checks"] if not state or each["state"] in state]
    if session.json:
        return output.print_json({**health, "checks": checks})
    output.print_line(f"Version {health['version']}; the worst state is {health['state']}.")
    rows = ((each["label"], each["text"], each["state"], each["limit"], each["advice"]) for each in checks)
    return output.print_table(
        ("check", "value", "state", "limit", "what to do"), rows, "No check is in this state."
    )
