"""Commands about one host: how its GPUs are, and what operators do about it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.asks import pairs_of
from cli.problems import NOT_FOUND, Problem
from cli.session import Session, cli, command
from cli.words import Duration, Moment, ago, cores, gibibytes, local

WHY = click.option("--why", default="", help="Shown to everybody, and kept in the record.")
NETWORKS = {"private": "only themselves", "internet": "the internet, nothing of the host", "host": "the host's"}
RETURNS = ("uncordon", "undrain", "resume")  # words of others for our return
PREVIEW = click.option("--preview", is_flag=True, help="Only show whom it touches, and until when.")


class _HostVerbs(click.Group):
    """Says which verb brings a host back to whom another scheduler has taught another word for it."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in RETURNS:
            raise click.UsageError(f"There is no {args[0]}: a host comes back with 'return'.", ctx)
        return super().resolve_command(ctx, args)


@cli.group(cls=_HostVerbs)
def host() -> None:
    """One host: its GPUs, diagnostics, repair and maintenance."""


def _at(name: str, verb: str) -> str:
    return f"hosts/{quote(name, safe='', errors='replace')}/{verb}/"


@command(host, "show")
@click.argument("name")
def show(session: Session, name: str) -> None:
    """One host: its states, what its agent says of it, and an agent that was turned away as it."""
    row = session.client.get(f"hosts/{quote(name, safe='', errors='replace')}/")
    if session.json:
        return output.as_json(row)
    now = datetime.now().astimezone()
    output.facts(_facts(row, now))
    for note in row.get("agent", {}).get("notes", ()):
        output.say(f"Can't: {note}")
    refused = row.get("refused_agent")
    if refused:
        boot = f" (boot {refused['boot_id']})" if refused["boot_id"] else ""
        output.say(f"Another agent was turned away {ago(refused['at'], now)}{boot}: {refused['reason']}")
        if refused["quarantined"]:
            output.say(
                "It is given no work and hears no orders. Find the machine that it runs on and end it there; or, if that is the one"
                f" that should go on, start it with another token: gpupool host join {name}"
            )
    return None


def _facts(row: dict[str, Any], now: datetime) -> list[tuple[str, Any]]:
    """What an older portal does not say is left out."""
    agent: dict[str, Any] = row.get("agent", {})
    counts = Counter(row["gpus"])
    sizes = [cores(row["cpu_milli"]) if row.get("cpu_milli") else "", gibibytes(row["memory_mib"]) if row.get("memory_mib") else ""]
    driver, cuda = agent.get("driver_version"), agent.get("cuda_version")
    apart = [row["isolation"], "a user id per team" if agent.get("users_per_team") else "", *_limits(agent)]
    full = row.get("disk_full_since")
    return [
        ("name", row["name"]),
        ("pool", row["pool"]),
        ("GPUs", ", ".join(f"{count} x {model}" for model, count in sorted(counts.items()))),
        ("readings", "simulated" if row["simulated"] else "measured"),
        *((f"between GPUs, {each['way']}", each["gpus"]) for each in row.get("between_gpus", ())),
        *((f"GPU {each['gpus']}" if each["gpus"] else "each GPU", each["words"]) for each in row.get("of_gpus", ())),
        ("CPU and memory", ", ".join(filter(None, sizes))),
        ("driver", f"{driver}{f', CUDA up to {cuda}' if cuda else ''}" if driver else ""),
        ("isolation", ", ".join(filter(None, apart))),
        ("lacking", ", ".join(row["isolation_lacking"])),
        ("network", NETWORKS.get(agent.get("network", ""), agent.get("network", ""))),
        ("address", agent.get("address", "")),
        ("own diagnostics", ", ".join(agent.get("diagnostics", ()))),
        ("labels", ", ".join(f"{name}={value}" for name, value in sorted(row["labels"].items()))),
        ("agent", agent.get("version") or ("never joined" if agent else "")),
        ("boot", agent.get("boot_id", "")),
        ("last heard", ago(row["last_sync_at"], now)),
        ("lease", "revoked" if row.get("revoked_at") else row["lease_state"]),
        ("service", row["admin_state"].replace("_", " ")),
        ("repair", row["repair_state"]),
        ("why", row["state_reason"] or row.get("revoked_why", "")),
        ("disk", f"full since {local(full)}: it starts nothing new" if full else ""),
    ]


def _limits(agent: dict[str, Any]) -> list[str]:
    return [f"limits of {', '.join(agent['limits'])}"] if agent.get("limits") else []


@command(host, "diagnostics")
@click.argument("name")
@click.option("--gpu", type=int, help="Only of this one, by its index.")
def diagnostics(session: Session, name: str, gpu: int | None) -> None:
    """What diagnostics of its GPUs found, the newest first, with each check and its numbers."""
    rows = [row for row in session.client.pages(_at(name, "diagnostics")) if gpu in (None, row["gpu"])]
    if session.json:
        return output.as_json(rows)
    now = datetime.now().astimezone()
    return output.table(
        ("GPU", "when", "why", "by", "result", "check", "says", "numbers"),
        (line for row in rows for line in _lines_of(row, now)),
        "No diagnostic yet. Have it look: gpupool host diagnose NAME",
    )


def _lines_of(row: dict[str, Any], now: datetime) -> list[tuple[Any, ...]]:
    """One line for each check; what it found as a whole on the first."""
    tool = f"{row['tool']}{' (simulated)' if row['simulated'] and row['tool'] != 'simulated' else ''}"
    head = (row["gpu"], ago(row["ended_at"] or row["created_at"], now), row["why"].replace("_", " "), tool, row["state"])
    said = {True: "passed", False: "failed", None: "measured"}
    checks = [
        (each["name"], " ".join(filter(None, [said[each["passed"]], each["detail"]])), _numbers(each["numbers"]))
        for each in row["checks"]
    ]
    if row["detail"] or not checks:
        checks.insert(0, ("", row["detail"], ""))
    blank = ("",) * len(head)
    return [(*(head if at == 0 else blank), *check) for at, check in enumerate(checks)]


def _numbers(numbers: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:,.6g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
                     for name, value in numbers.items())  # fmt: skip


@command(host, "events")
@click.argument("name")
def events(session: Session, name: str) -> None:
    """Every hardware event of a host, the newest first."""
    rows = list(session.client.pages(_at(name, "events")))
    if session.json:
        return output.as_json(rows)
    return _say_events(rows, datetime.now().astimezone())


def _say_events(rows: list[dict[str, Any]], now: datetime) -> None:
    output.table(
        ("when", "GPU", "event", "meaning", "detail", "done"),
        (
            (ago(e["at"], now), "" if e["gpu"] is None else e["gpu"], e["code"], e["meaning"], e["detail"], e["action"])
            for e in rows
        ),
        "No hardware event.",
    )


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
    for gone in found.get("missing_gpus", ()):
        before = f"; before that {gone['repair_state']}: {gone['reason']}" if gone["reason"] else ""
        output.say(f"GPU {gone['gpu']} ({gone['uuid']}) is missing since {local(gone['missing_since'])}{before}")
    if found.get("revoked_at"):
        why = f" ({found['revoked_why']})" if found["revoked_why"] else ""
        output.say(f"Its credential was revoked {ago(found['revoked_at'], now)}{why}; to join again: gpupool host join {name}")
    if found["state_reason"]:
        output.say(f"Not simply in service: {found['state_reason']}")
    _say_events(found["events"], now)
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
@PREVIEW
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


@command(host, "forget-gpu")
@click.argument("name")
@click.argument("uuid")
@WHY
def forget_gpu(session: Session, name: str, uuid: str, why: str) -> None:
    """A GPU that is missing is gone for good: it is listed no more."""
    row = session.client.post(_at(name, "forget-gpu"), {"gpu": uuid, "why": why})
    output.as_json(row) if session.json else output.say(f"GPU {row['gpu']} of {name} ({row['uuid']}) is listed no more.")


def _of_gpu(session: Session, name: str, verb: str, gpu: int, why: str) -> None:
    row = session.client.post(_at(name, verb), {"gpu": gpu, "why": why})
    output.as_json(row) if session.json else output.say(f"GPU {gpu} of {name} is {row['repair_state']}.")


@command(host, "cordon")
@click.argument("name")
@WHY
@PREVIEW
def cordon(session: Session, name: str, why: str, preview: bool) -> None:
    """Nothing new starts there; what runs goes on."""
    _of_host(session, name, "cordon", why, preview)


@command(host, "drain")
@click.argument("name")
@WHY
@PREVIEW
def drain(session: Session, name: str, why: str, preview: bool) -> None:
    """Nothing new starts there, and what runs is asked to go."""
    _of_host(session, name, "drain", why, preview)


@command(host, "return")
@click.argument("name")
@WHY
@PREVIEW
def return_host(session: Session, name: str, why: str, preview: bool) -> None:
    """Back in service."""
    _of_host(session, name, "return", why, preview)


@command(host, "revoke")
@click.argument("name")
@WHY
@PREVIEW
def revoke(session: Session, name: str, why: str, preview: bool) -> None:
    """Cut its agent off at once: what runs there stops when its lease ends. It joins again with: gpupool host join NAME"""
    _of_host(session, name, "revoke", why, preview)


@command(cli, "host-is-off")
@click.argument("name")
@click.option("--why", default="", help="What you saw; kept in the audit log. Needed, but for --preview.")
@PREVIEW
def host_is_off(session: Session, name: str, why: str, preview: bool) -> None:
    """You have seen a host powered off: its work starts elsewhere at once. For operators."""
    _need_why(why, preview)
    _of_host(session, name, "off", why, preview)


@command(host, "join")
@click.argument("name")
@click.option("--pool", help="Of a host that is new.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Of a host that is new; asks can require them.")
def join(session: Session, name: str, pool: str | None, labels: tuple[str, ...]) -> None:
    """The one command with which a machine joins as this host; with --pool a new host is made known first."""
    known = _known(session, name)
    if known is None and pool is None:
        raise Problem(f"There is no host {name}; give --pool to make it known, or see: gpupool hosts", NOT_FOUND)
    if known is not None and pool not in (None, known["pool"]):
        raise Problem(f"{name} is a host of the pool {known['pool']} already; leave --pool out for another token.")
    if known is not None and labels:
        raise click.UsageError(f"{name} is known already; --label is for one that is new.")
    if known is None:
        made = session.client.post("hosts/", {"pool": pool, "name": name, "labels": pairs_of(labels)})
    else:
        made = session.client.post(_at(name, "join-token"))
    if session.json:
        return output.as_json(made)
    begun = f"{name} is known in the pool {pool}." if known is None else f"Tokens of {name} not used so far stopped working."
    output.say(f"{begun} Run this on the machine, once, by {local(made['good_until'])}:")
    output.say(f"\n  {made['command']}\n")
    output.say("Or, in a checkout of gpupool, to try it:")
    output.say(f"\n  {made['checkout_command']}\n")
    if made.get("simulated_as"):
        output.say(f"Its GPUs were simulated: add {made['simulated_as']} to that, and it has the same again.")
    elif known is None or not known["gpus"]:
        output.say("Without a GPU, add --simulate 8xH100-80GB to that: the host is then marked as simulated everywhere.")
    output.say(
        "Checkpoints and homes lie in the agent's state folder unless --homes names a folder that all hosts of the pool share."
        " Without one, work that is moved to or from this host does not find its last checkpoint."
    )
    if known is not None and known["lease_state"] in ("alive", "suspect"):
        output.say(f"The agent of {name} that speaks now is turned away once another one has joined.")
    return None


def _known(session: Session, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = session.client.get(f"hosts/{quote(name, safe='', errors='replace')}/")
    except Problem as problem:
        if problem.code != NOT_FOUND:
            raise
        return None
    return found


TITLES = {
    "cordon": "Cordon {}",
    "drain": "Drain {}",
    "return": "Return {} to service",
    "revoke": "Revoke the credential of {}",
    "off": "{} is powered off",
    "maintenance": "Maintenance of {}",
}
PATHS = {"off": "attest-off"}
CLOSES = ("cordon", "drain", "revoke")


def _of_host(session: Session, name: str, verb: str, why: str, preview: bool) -> None:
    if preview:
        return _preview(session, name, {"verb": verb})
    row = session.client.post(_at(name, PATHS.get(verb, verb)), {"why": why})
    if session.json:
        return output.as_json(row)
    # An older portal does it as well, and says less.
    output.say(row.get("said") or f"{row['name']} is {row['admin_state'].replace('_', ' ')}, {row['repair_state']}.")
    return _say_work(row["still_there"]) if verb in CLOSES and "still_there" in row else None


def _preview(session: Session, name: str, body: dict[str, Any]) -> None:
    found = session.client.post(_at(name, "preview"), body)
    if session.json:
        return output.as_json(found)
    output.say(f"{TITLES[found['verb']].format(name)}: {found['text']}")
    _say_work(found["work"])
    if found["gpus"] is not None:
        away = {"return": "come back to the pool", "maintenance": "are away meanwhile"}
        output.say(f"GPUs that {away.get(found['verb'], 'leave the pool')}: {found['gpus']}.")
    _say_reservations(found)
    if found["last_end"]:
        output.say(f"The last ends by {local(found['last_end'])} at the latest.")
    return output.say("Nothing is changed; without --preview it is done.")


def _say_work(rows: list[dict[str, Any]]) -> None:
    output.table(
        ("workload", "team", "owner", "what happens", "at the latest"),
        ((w["name"], w["team"], w["owner"], w["words"], local(w["by"]) if w["by"] else "at once") for w in rows),
        "Nothing runs on it.",
    )


def _say_reservations(found: dict[str, Any]) -> None:
    if found["reservations"]:
        listed = ", ".join(f"{r['name']} ({r['team']}, until {local(r['end'])})" for r in found["reservations"])
        output.say(f"Reservations on its GPUs, which get others: {listed}.")
    if found.get("unkept"):
        listed = ", ".join(f"{r['name']} ({r['team']}, from {local(r['start'])})" for r in found["unkept"])
        output.say(f"Coming reservations that could not be kept: {listed}.")
    elif found.get("unkept") is not None:
        output.say("Every coming reservation can be kept without it.")


def _need_why(why: str, preview: bool) -> None:
    if not why and not preview:
        raise click.UsageError("Give the reason: --why.")


@command(host, "maintenance")
@click.argument("name")
@click.option("--start", type=Moment(), required=True, help="Such as 'tomorrow 08:00'.")
@click.option("--end", type=Moment(), required=True)
@click.option("--why", default="", help="Shown to everybody; owners of what it touches are told. Needed, but for --preview.")
@PREVIEW
def maintenance(session: Session, name: str, start: str, end: str, why: str, preview: bool) -> None:
    """Announce a window in which it is away: nothing is planned into it."""
    _need_why(why, preview)
    if preview:
        return _preview(session, name, {"verb": "maintenance", "start": start, "end": end})
    row = session.client.post(_at(name, "maintenance"), {"start": start, "end": end, "why": why})
    if session.json:
        return output.as_json(row)
    output.say(f"{name} is away from {local(row['start'])} to {local(row['end'])}: nothing is planned into it.")
    if "work" in row:  # an older portal does not say
        _say_work(row["work"])
        _say_reservations({**row, "verb": "maintenance"})
        output.say(f"Take it back with: gpupool host cancel-maintenance {name} {row['id']}")
    return None


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
