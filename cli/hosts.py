"""Commands about one host: how its GPUs are, and what operators do about it."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.session import Session, cli, command
from cli.words import Duration, Moment, ago, local

WHY = click.option("--why", default="", help="Shown to everybody, and kept in the record.")


@cli.group()
def host() -> None:
    """One host: its GPUs, diagnostics, repair and maintenance."""


def _at(name: str, verb: str) -> str:
    return f"hosts/{quote(name, safe='', errors='replace')}/{verb}/"


@command(host, "health")
@click.argument("name")
def health(session: Session, name: str) -> None:
    """How its GPUs are, what they reported, processes of no workload on them, and announced maintenance."""
    found = session.client.get(_at(name, "health"))
    if session.json:
        return output.as_json(found)
    now = datetime.now().astimezone()
    output.table(
        ("GPU", "model", "repair", "why", "last diagnostic", "when", "found"),
        ((row["gpu"], row["model"], row["repair_state"], row["reason"], *_last(row, now)) for row in found["gpus"]),
        "No GPU reported.",
    )
    if found["state_reason"]:
        output.say(f"Not simply in service: {found['state_reason']}")
    output.table(
        ("when", "GPU", "event", "meaning", "detail", "done"),
        (
            (ago(e["at"], now), "" if e["gpu"] is None else e["gpu"], e["code"], e["meaning"], e["detail"], e["action"])
            for e in found["events"]
        ),
        "No hardware event.",
    )
    if found["strays"]:
        output.say(f"Processes of no workload: {found['strays']}")
        output.table(
            ("GPU", "pid", "user", "name", "MiB", "since", "done"),
            (
                (
                    s["gpu"],
                    s["pid"],
                    s["user"],
                    s["name"],
                    s["memory_mib"],
                    local(s["first_seen"]),
                    s["done"] or "shown",
                )
                for s in found["stray_processes"]
            ),
            "Operators and auditors see whose they are.",
        )
    for window in found["maintenance"]:
        output.say(
            f"Away from {local(window['start'])} to {local(window['end'])}: {window['reason']} (window {window['id']})"
        )
    return None


def _last(row: dict[str, Any], now: datetime) -> tuple[str, str, str]:
    last = row["last_diagnostic"]
    if last is None:
        return "none yet", "", ""
    simulated = " (simulated)" if last["simulated"] else ""
    return f"{last['state']}{simulated}", ago(last["ended_at"] or last["created_at"], now), last["detail"]


@command(host, "diagnose")
@click.argument("name")
@click.option("--gpu", type=int, help="Its index; every GPU that nobody holds unless given.")
@WHY
def diagnose(session: Session, name: str, gpu: int | None, why: str) -> None:
    """Have it look at a GPU: memory, bandwidth, arithmetic. Passed, it comes back; failed, it is out."""
    body: dict[str, Any] = {"why": why} | ({} if gpu is None else {"gpu": gpu})
    rows = session.client.post(_at(name, "diagnose"), body)
    if session.json:
        return output.as_json(rows)
    listed = ", ".join(str(row["gpu"]) for row in rows)
    return output.say(f"Being looked at: GPU {listed}. See: gpupool host health {name}")


@command(host, "geometry")
@click.argument("name")
def geometry(session: Session, name: str) -> None:
    """How its GPUs are split into MIG instances, what they can be, and what came of the last change."""
    rows = session.client.get(_at(name, "geometry"))
    if session.json:
        return output.as_json(rows)
    return output.table(
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
@click.option("--preview", is_flag=True, help="Only show whose work would leave, and when.")
@WHY
def change_geometry(session: Session, name: str, gpu: int, wanted: str, preview: bool, why: str) -> None:
    """Split a GPU otherwise: GEOMETRY is whole, or such as 1x3g.40gb+4x1g.10gb. Its work leaves first."""
    body = {"gpu": gpu, "geometry": wanted}
    if preview:
        found = session.client.post(_at(name, "geometry/preview"), body)
        if session.json:
            return output.as_json(found)
        output.say(f"GPU {gpu} of {name}: {found['before'] or 'whole'} becomes {found['after'] or 'whole'}.")
        output.table(
            ("workload", "team", "owner", "what happens", "gone at the latest"),
            (
                (w["name"], w["team"], w["owner"], "leaves" if w["leaves"] else "runs to its end", local(w["by"]))
                for w in found["work"]
            ),
            "Nothing runs on it.",
        )
        begins = "at once" if found["free_by"] is None else f"by {local(found['free_by'])}"
        unkept = f" Could not be kept without it: {', '.join(found['unkept'])}." if found["unkept"] else ""
        return output.say(f"Reservations bound to it: {found['reservations']}.{unkept} Its host begins {begins}.")
    row = session.client.post(_at(name, "geometry"), {**body, "why": why})
    said = f"GPU {gpu} of {name} takes nothing new and becomes {row['after']} once nothing holds it."
    return output.as_json(row) if session.json else output.say(f"{said} See: gpupool host geometry {name}")


@command(host, "withdraw-geometry")
@click.argument("name")
@click.argument("gpu", type=int)
@WHY
def withdraw_geometry(session: Session, name: str, gpu: int, why: str) -> None:
    """Leave a GPU as it is, while its host was not told yet."""
    row = session.client.post(_at(name, "geometry/withdraw"), {"gpu": gpu, "why": why})
    output.as_json(row) if session.json else output.say(f"GPU {gpu} of {name} stays {row['before']}.")


@command(host, "return-gpu")
@click.argument("name")
@click.argument("gpu", type=int)
@WHY
def return_gpu(session: Session, name: str, gpu: int, why: str) -> None:
    """A GPU back in service, whatever was found."""
    _of_gpu(session, name, "return-gpu", gpu, why)


@command(host, "take-out-gpu")
@click.argument("name")
@click.argument("gpu", type=int)
@WHY
def take_out_gpu(session: Session, name: str, gpu: int, why: str) -> None:
    """A GPU out until it is returned; its work is stopped and starts elsewhere."""
    _of_gpu(session, name, "take-out-gpu", gpu, why)


def _of_gpu(session: Session, name: str, verb: str, gpu: int, why: str) -> None:
    row = session.client.post(_at(name, verb), {"gpu": gpu, "why": why})
    output.as_json(row) if session.json else output.say(f"GPU {gpu} of {name} is {row['repair_state']}.")


@command(host, "cordon")
@click.argument("name")
@WHY
def cordon(session: Session, name: str, why: str) -> None:
    """Nothing new starts there; what runs goes on."""
    _of_host(session, name, "cordon", why)


@command(host, "drain")
@click.argument("name")
@WHY
def drain(session: Session, name: str, why: str) -> None:
    """Nothing new starts there, and what runs is asked to go."""
    _of_host(session, name, "drain", why)


@command(host, "return")
@click.argument("name")
@WHY
def return_host(session: Session, name: str, why: str) -> None:
    """Back in service."""
    _of_host(session, name, "return", why)


def _of_host(session: Session, name: str, verb: str, why: str) -> None:
    row = session.client.post(_at(name, verb), {"why": why})
    said = f"{row['name']} is {row['admin_state'].replace('_', ' ')}, {row['repair_state']}."
    output.as_json(row) if session.json else output.say(said)


@command(host, "maintenance")
@click.argument("name")
@click.option("--start", type=Moment(), required=True, help="Such as 'tomorrow 08:00'.")
@click.option("--end", type=Moment(), required=True)
@click.option("--why", required=True, help="Shown to everybody; owners of what it touches are told.")
def maintenance(session: Session, name: str, start: str, end: str, why: str) -> None:
    """Announce a window in which it is away: nothing is planned into it."""
    body = {"start": start, "end": end, "why": why}
    row = session.client.post(_at(name, "maintenance"), body)
    said = f"{name} is away from {local(row['start'])} to {local(row['end'])}."
    output.as_json(row) if session.json else output.say(said)


@command(host, "cancel-maintenance")
@click.argument("name")
@click.argument("window", type=int)
@WHY
def cancel_maintenance(session: Session, name: str, window: int, why: str) -> None:
    """Take an announced window back; its number is in: gpupool host health NAME"""
    row = session.client.post(_at(name, "maintenance/cancel"), {"window": window, "why": why})
    output.as_json(row) if session.json else output.say(f"The window from {local(row['start'])} is taken back.")


@command(cli, "repair-policy")
@click.argument("pool")
@click.option("--strays", "stray_action", type=click.Choice(["report", "warn", "end"]))
@click.option("--tool", "diagnostic_tool", help="auto, own, dcgm, or a name that its hosts have for their operator's own.")
@click.option("--deadline", "diagnostic_seconds", type=Duration(), help="For one GPU, such as 10m.")
@click.option("--idle-every", "diagnose_every_hours", type=int, help="Hours; 0: never.")
@click.option("--after-quarantine/--not-after-quarantine", "diagnose_after_quarantine", default=None)
def repair_policy(session: Session, pool: str, **given: Any) -> None:
    """What a pool does by itself about processes of no workload and GPUs that are not to be trusted."""
    path = f"pools/{quote(pool, safe='', errors='replace')}/repair-policy/"
    change = {name: value for name, value in given.items() if value is not None}
    row = session.client.put(path, change) if change else session.client.get(path)
    if session.json:
        return output.as_json(row)
    return output.facts([(name.replace("_", " "), str(value)) for name, value in row.items()])
