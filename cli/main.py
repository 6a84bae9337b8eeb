"""The commands. Each is one call or two of the API; nothing is decided here."""

from __future__ import annotations

import os
import shlex
import sys
import time
import uuid
import webbrowser
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from typing import Any
from urllib.parse import quote

import click

from cli import VERSION, login, output
from cli.client import Client
from cli.problems import NOT_FOUND, UNREACHABLE, USAGE, Problem
from cli.words import Duration, Moment, ago, data_size, length, local, local_zone, start_range

DURATION, MOMENT = Duration(), Moment()
PRIORITIES = click.Choice(["low", "normal", "high", "critical"])
EVERY_DAY = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS = click.Choice(EVERY_DAY)
TYPES = click.Choice(["training", "inference", "interactive", "other"])
POLL_SECONDS = 1.0
OPEN_STATES = ("queued", "placed", "starting", "running", "notice", "stopping")
Command = Callable[..., Any]


class Session:
    """What one run of the program knows: the client, made when it is first needed, and whether JSON is wanted."""

    def __init__(self) -> None:
        self.json = False
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Raises Problem when nobody is signed in."""
        if self._client is None:
            self._client = Client(login.load())
        return self._client


def command(group: click.Group, name: str | None = None, **more: Any) -> Callable[[Command], click.Command]:
    """A command of a group that has the session as its first argument, and --json."""

    def wrap(function: Command) -> click.Command:
        @wraps(function)
        def call(json_wanted: bool, *args: Any, **kwargs: Any) -> Any:
            session = click.get_current_context().find_root().obj
            session.json = session.json or json_wanted
            return function(session, *args, **kwargs)

        option = click.option("--json", "json_wanted", is_flag=True, help="Print the API's JSON.")
        made: click.Command = group.command(name, **more)(option(call))
        return made

    return wrap


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="gpupool")
@click.pass_context
def cli(context: click.Context) -> None:
    """One shared pool of GPUs: notebooks, jobs, reservations."""
    context.obj = context.obj or Session()


@cli.group()
def notebook() -> None:
    """Launch, open and stop notebooks."""


@cli.group()
def job() -> None:
    """Run jobs and read what they write."""


@cli.group()
def reservation() -> None:
    """Reserve GPUs for a window."""


@cli.group()
def quota() -> None:
    """What teams are guaranteed."""


@cli.group()
def volume() -> None:
    """Homes and their size."""


@cli.group()
def pool() -> None:
    """What pools demand of their hosts."""


@cli.group()
def approval() -> None:
    """What waits for somebody's word."""


# -- signing in --------------------------------------------------------------------------------------------------------


@command(cli, "login")
@click.option("--url", prompt="URL of the portal", help="Such as https://gpu.example.org")
@click.option(
    "--token",
    prompt="Token",
    hide_input=True,
    help="Made in the portal under API tokens; - reads it from standard input.",
)
def sign_in(session: Session, url: str, token: str) -> None:
    """Keep the portal's address and a token, after trying them."""
    text = sys.stdin.readline().strip() if token == "-" else token.strip()
    made = login.Login(login.checked_url(url), text)
    me = Client(made).get("me/")
    place = login.path()
    login.save(made, place)
    if session.json:
        output.as_json({"url": made.url, "username": me["username"]})
    else:
        output.say(f"Signed in to {made.url} as {me['username']}. Kept in {place}.")


@command(cli, "logout")
def sign_out(session: Session) -> None:
    """Forget the token here; revoke it in the portal to end it everywhere."""
    login.path().unlink(missing_ok=True)
    output.as_json({}) if session.json else output.say("Signed out on this machine.")


@command(cli, "me")
def whoami(session: Session) -> None:
    """Who the token speaks for."""
    me = session.client.get("me/")
    if session.json:
        return output.as_json(me)
    roles = [name for name in ("operator", "finance", "auditor") if me[name]]
    teams = [f"{each['team']} ({each['role']})" for each in me["teams"]]
    return output.facts(
        [
            ("name", me["username"]),
            ("portal", session.client.login.url),
            ("roles", ", ".join(roles)),
            ("teams", ", ".join(teams)),
        ]
    )


# -- notebooks and jobs ------------------------------------------------------------------------------------------------


def asking(function: Command) -> Command:
    """Options of everything that asks for GPUs."""
    for option in reversed(
        (
            click.option("--project", help="team/project; not needed when you have one only."),
            click.option("--pool", help="Not needed when there is one only."),
            click.option("--gpus", type=int, help="How many (on each host)."),
            click.option("--model", "models", multiple=True, help="Such as H100-80GB; again for a second choice."),
            click.option("--profile", help="A slice, such as 1g.10gb; whole GPUs unless given."),
        )
    ):
        function = option(function)
    return function


def running(function: Command) -> Command:
    """Options of everything that runs."""
    for option in reversed(
        (
            click.option("--name", help="How people call it."),
            click.option("--type", "type_", type=TYPES),
            click.option("--max-runtime", type=DURATION, help="Such as 90m, 8h, 1d."),
            click.option("--reservation", "inside", help="ID of a reservation to run inside."),
        )
    ):
        function = option(function)
    return function


def placed(function: Command) -> Command:
    """Options that say on how many hosts, and on which."""
    for option in reversed(
        (
            click.option("--hosts", type=int, help="Over so many hosts."),
            click.option("--min-memory-mib", type=int, help="Memory of each GPU."),
            click.option("--nvlink", is_flag=True, default=None, help="All GPUs of a host in one NVLink group."),
            click.option(
                "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only on hosts with this label."
            ),
            click.option("--prefer", multiple=True, metavar="NAME=VALUE", help="Rather on hosts with this label."),
            click.option("--spread", is_flag=True, default=None, help="Over hosts that share as little as can be."),
        )
    ):
        function = option(function)
    return function


@command(notebook, "launch")
@asking
@running
@click.option("--template", help="What is not given comes from it.")
@click.option("--open", "open_it", is_flag=True, help="Wait until it is ready and open it in the browser.")
@click.option("--wait", is_flag=True, help="Wait until it is ready.")
def launch_notebook(session: Session, open_it: bool, wait: bool, template: str | None, **given: Any) -> None:
    """Launch a JupyterLab."""
    body = _body(session, given) | ({"template": template} if template else {})
    made = session.client.post("notebooks/", body)
    if wait or open_it:
        made = _until_ready(session, made["id"])
    if open_it:
        return _open(session, made, print_only=False)
    return _made(session, made)


@command(notebook, "open")
@click.argument("id_", metavar="ID")
@click.option("--print", "print_only", is_flag=True, help="Print the address and open nothing.")
def open_notebook(session: Session, id_: str, print_only: bool) -> None:
    """Open a running notebook in the browser. The address works once, within a minute."""
    _open(session, _found(session, id_), print_only)


@command(notebook, "stop")
@click.argument("id_", metavar="ID")
def stop_notebook(session: Session, id_: str) -> None:
    """Stop a notebook; its files stay in your home."""
    _cancel(session, id_, "")


@command(notebook, "list")
@click.option("--all", "everything", is_flag=True, help="Those of your teams, and those that ended.")
def list_notebooks(session: Session, everything: bool) -> None:
    """Your notebooks."""
    _list(session, "notebooks/", everything)


@command(job, "run", context_settings={"ignore_unknown_options": False})
@asking
@running
@placed
@click.option("--priority", type=PRIORITIES)
@click.option("--preemptible/--no-preemptible", default=None, help="Whether it may borrow and be asked to go.")
@click.option("--most-retries", type=int, help="Tries again so often after a failure.")
@click.option(
    "--if-member-ends", type=click.Choice(["restart", "end"]), help="On several hosts, once it ends on one of them."
)
@click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="An environment variable.")
@click.option("--wanted-by", type=MOMENT, help="When it should be done: a wish; you are told when it looks later.")
@click.option(
    "--after", multiple=True, metavar="HOW:ID", help="Only once a job or a whole array has ended: ok, any, not_ok."
)
@click.option("--array", help="One task for each index: 0-9, 1,3,5-9:2; %4 after it: at most 4 at once.")
@click.option("--follow", "-f", is_flag=True, help="Wait for it and print what it writes.")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...")
def run_job(
    session: Session,
    words: tuple[str, ...],
    follow: bool,
    labels: tuple[str, ...],
    environment: tuple[str, ...],
    prefer: tuple[str, ...],
    after: tuple[str, ...],
    array: str | None,
    **given: Any,
) -> None:
    """Run a command as a job: gpupool job run --gpus 2 -- python train.py"""
    if array and follow:
        raise click.UsageError("--follow goes with one job; read a task's log with: gpupool job logs ID")
    body = _body(session, given)
    body["command"] = words[0] if len(words) == 1 else shlex.join(words)
    body.setdefault("name", words[0].split()[0].rsplit("/", 1)[-1][:80] if words[0].split() else "job")
    body.setdefault("units", 1)
    body |= _labels(labels, prefer) | ({"environment": _pairs(environment)} if environment else {})
    if after:
        body["after"] = [_dependency(session, text) for text in after]
    if array:
        made = session.client.post("arrays/", body | {"array": array})
        return output.as_json(made) if session.json else _tasks_made(made)
    made = session.client.post("jobs/", body)
    if not follow:
        return _made(session, made)
    if not session.json:
        _made(session, made)
    return _follow(session, made["id"], None)


def _labels(labels: tuple[str, ...], prefer: tuple[str, ...]) -> dict[str, dict[str, str]]:
    wanted = {"labels_required": _pairs(labels), "labels_preferred": _pairs(prefer)}
    return {name: pairs for name, pairs in wanted.items() if pairs}


def _dependency(session: Session, text: str) -> dict[str, str]:
    condition, colon, id_ = text.partition(":")
    if not colon or condition not in ("ok", "any", "not_ok"):
        raise click.UsageError(f"--after {text!r}; allowed: ok:ID, any:ID or not_ok:ID.")
    try:
        return {"condition": condition, "workload": _found(session, id_)["id"]}
    except Problem as no_workload:
        if no_workload.code != NOT_FOUND:
            raise
        try:
            return {"condition": condition, "array": _named(session.client, id_, "arrays/", "array")["id"]}
        except Problem:
            raise no_workload from None


def _tasks_made(made: Any) -> None:
    output.say(f"{made['name']} ({made['id']}): {made['tasks']} tasks in {made['pool']}.")


@command(job, "arrays")
def list_arrays(session: Session) -> None:
    """Arrays of jobs of your teams, with their counts."""
    rows = list(session.client.pages("arrays/"))
    if session.json:
        return output.as_json(rows)
    columns = ("tasks", "waiting", "running", "finished", "cancelled", "failed")
    return output.table(
        ("id", "name", *columns, "owner"),
        ((row["id"][:8], row["name"], *(row[name] for name in columns), row["owner"]) for row in rows),
        "No arrays. Make one: gpupool job run --array 0-9 -- COMMAND",
    )


@command(job, "cancel-array")
@click.argument("id_", metavar="ID")
@click.option("--why", "reason", default="", help="Kept in the record.")
def cancel_array(session: Session, id_: str, reason: str) -> None:
    """Cancel every task of an array that has not ended."""
    found = _named(session.client, id_, "arrays/", "array")
    answer = session.client.post(f"arrays/{found['id']}/cancel/", {"why": reason})
    output.as_json(answer) if session.json else output.say(f"{answer['cancelled']} tasks are cancelled.")


@command(job, "logs")
@click.argument("id_", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until it has ended.")
@click.option("--attempt", type=int, help="The last one unless given.")
def read_logs(session: Session, id_: str, follow: bool, attempt: int | None) -> None:
    """What a job wrote."""
    found = _found(session, id_)
    if follow:
        return _follow(session, found["id"], attempt)
    offset, text = 0, []
    while True:
        piece = session.client.get(f"workloads/{found['id']}/logs/", offset=offset, attempt=attempt)
        if not piece["text"]:
            break
        text.append(piece["text"])
        offset = piece["next_offset"]
    if session.json:
        return output.as_json({"text": "".join(text), "next_offset": offset})
    sys.stdout.write("".join(text))
    return None


@command(job, "open")
@click.argument("id_", metavar="ID")
@click.option("--print", "print_only", is_flag=True, help="Print the address and open nothing.")
def open_job(session: Session, id_: str, print_only: bool) -> None:
    """Open what a job serves in the browser. The address works once, within a minute."""
    _open(session, _found(session, id_), print_only)


@command(job, "list")
@click.option("--all", "everything", is_flag=True, help="Those of your teams, and those that ended.")
def list_jobs(session: Session, everything: bool) -> None:
    """Your jobs."""
    _list(session, "jobs/", everything)


@command(cli, "queue")
@click.option("--pool", help="Of one pool.")
@click.option("--fairness", is_flag=True, help="Who gets how much instead: each team's guarantee, use and share.")
def queue(session: Session, pool: str | None, fairness: bool) -> None:
    """What waits, in the order in which it is looked at, and why."""
    if fairness:
        return _fairness(session, pool)
    rows = list(session.client.pages("queue/", pool=pool))
    if session.json:
        return output.as_json(rows)
    now = datetime.now().astimezone()
    return output.table(
        ("place", "id", "name", "owner", "GPUs", "pool", "waits", "expected", "why"),
        (
            (
                row["position"],
                row["id"][:8],
                row["name"],
                row["owner"],
                row["units"] * row["hosts"],
                row["pool"],
                ago(row["submitted_at"], now).removesuffix(" ago"),
                start_range(row, now),
                row["reason"],
            )
            for row in rows
        ),
        "Nothing waits that you may see.",
    )


def _fairness(session: Session, pool: str | None) -> None:
    """Why does that team get more? By pool."""
    pools = [pool] if pool else [row["slug"] for row in session.client.get("pools/")]
    found = {slug: session.client.get(f"pools/{quote(slug, safe='', errors='replace')}/fairness/") for slug in pools}
    if session.json:
        return output.as_json(found)
    for slug, rows in found.items():
        output.say(f"{slug}: the lowest share borrows next; 1.00 is a team's fair part.")
        output.table(
            ("team", "guaranteed", "held", "borrowed", "waits for", "past hours", "weight", "share"),
            (
                (
                    row["team"],
                    f"{row['guaranteed_gpus']:.4g}",
                    f"{row['held_gpus']:.4g}",
                    f"{row['borrowed_gpus']:.4g}",
                    f"{row['waiting_gpus']:.4g}",
                    f"{row['past_gpu_hours']:,.0f}",
                    row["weight"],
                    "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
                )
                for row in rows
            ),
            "No team has a quota here.",
        )
    return None


@command(cli, "why")
@click.argument("id_", metavar="ID")
@click.option("--them", metavar="ID", help="Why this other one, not mine: the rule that decides between the two.")
@click.option(
    "--sooner", is_flag=True, help="Also what would start sooner, and when it could be reserved; each is planned for."
)
def why(session: Session, id_: str, them: str | None, sooner: bool) -> None:
    """Why it waits, or why it started or had to go."""
    found = _found(session, id_)
    if them:
        return _why_them(session, found, _found(session, them))
    answer = session.client.get(f"workloads/{found['id']}/why/")
    if sooner:
        answer["sooner"] = session.client.get(f"workloads/{found['id']}/sooner/")
        answer["windows"] = session.client.get(f"workloads/{found['id']}/windows/")
    if session.json:
        return output.as_json(answer)
    output.say(f"{found['name']} is {answer['state']}. {answer['sentence']}".strip())
    now = datetime.now().astimezone()
    hidden = answer["hidden_blockers"]
    before = [f"{each['name']} of {each['owner']}" for each in answer["blockers"]] + (
        [f"{hidden} more"] if hidden else []
    )
    output.facts(
        [
            ("place", answer["position"]),
            ("expected", start_range(answer, now) if answer["expected_start"] else ""),
            ("how sure", answer["past_starts"]["sentence"] if answer["expected_start"] else ""),
            ("waits for", ", ".join(before)),
            ("others first", f"{answer['ahead_more']} more" if answer["ahead_more"] else ""),
        ]
    )
    for row in answer["ahead"]:
        output.say(f"goes first: {row['name']} of {row['owner']} ({row['id'][:8]}): {row['because']}")
    for way in answer.get("sooner", []):
        output.say(f"sooner: {way['words']}: {'now' if way['starts_now'] else ago(way['expected_start'], now)}")
    if sooner and not answer["sooner"]:
        output.say("Nothing that was tried would start sooner.")
    for window in answer.get("windows", []):
        needs = " (needs approval)" if window["needs_approval"] else ""
        output.say(f"could be reserved: {local(window['start'])} to {local(window['end'])}{needs}")
    for row in answer["decisions"]:
        output.say(f"{local(row['at'])}  {row['kind']:<8}  {row['sentence']}")
    return None


def _why_them(session: Session, mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """The rule that decides between two, and what would be without the other."""
    answer = session.client.get(f"workloads/{mine['id']}/why/{theirs['id']}/")
    if session.json:
        return output.as_json(answer)
    without = answer["without"]
    output.say(f"{theirs['name']} and not {mine['name']}: {answer['sentence']}")
    starts = "would start now" if without["starts_now"] else f"would not start now. {without['sentence']}"
    output.say(f"Without {theirs['name']}, {mine['name']} {starts}".rstrip(".") + ".")
    return None


@command(cli, "show")
@click.argument("id_", metavar="ID")
def show(session: Session, id_: str) -> None:
    """One notebook or job: state, host, GPUs, times."""
    answer = session.client.get(f"workloads/{_found(session, id_)['id']}/")
    if session.json:
        return output.as_json(answer)
    last = answer["runs"][0] if answer["runs"] and answer["state"] != "queued" else {}  # what waits holds nothing
    now = datetime.now().astimezone()
    return output.facts(
        [
            ("id", answer["id"]),
            ("name", answer["name"]),
            ("kind", answer["kind"]),
            ("state", answer["outcome"] if answer["state"] == "ended" else answer["state"]),
            ("why", answer["reason"]),
            ("project", answer["project"]),
            ("pool", answer["pool"]),
            ("GPUs", _gpus(answer)),
            ("host", last.get("host")),
            ("holds", ", ".join(last.get("gpus", []))),
            ("attempt", answer["attempt"]),
            ("submitted", ago(answer["submitted_at"], now)),
            ("started", ago(answer["started_at"], now) if answer["started_at"] else ""),
            ("limit", length(answer["max_runtime_seconds"])),
            ("command", answer["command"]),
        ]
    )


@command(cli, "cancel")
@click.argument("id_", metavar="ID")
@click.option("--why", "reason", default="", help="Kept in the record.")
def cancel(session: Session, id_: str, reason: str) -> None:
    """Stop a notebook or job, or take it out of the queue."""
    _cancel(session, id_, reason)


@command(cli, "extend")
@click.argument("id_", metavar="ID")
@click.option("--by", "--seconds", "seconds", type=DURATION, required=True, help="Such as 2h.")
def extend(session: Session, id_: str, seconds: int) -> None:
    """Let it run longer."""
    answer = session.client.post(f"workloads/{_found(session, id_)['id']}/extend/", {"seconds": seconds})
    if session.json:
        return output.as_json(answer)
    return output.say(f"{answer['name']} may now run {length(answer['max_runtime_seconds'])}.")


# -- reservations ------------------------------------------------------------------------------------------------------


@command(reservation, "create")
@asking
@placed
@click.option("--name", default="Reservation")
@click.option("--start", type=MOMENT, required=True, help="Such as 'tomorrow 09:00' or 2026-03-02T09:00.")
@click.option("--end", type=MOMENT, help="The same way.")
@click.option("--for", "length_", type=DURATION, help="Instead of --end: such as 8h.")
@click.option("--may-exceed-guarantee", is_flag=True, default=None, help="Ask to use what other teams are guaranteed.")
@click.option("--why", "reason", help="For the one who approves.")
@click.option("--on", "weekdays", multiple=True, type=WEEKDAYS, help="It recurs on this weekday; again for others.")
@click.option("--every", type=click.Choice(["day", "weekday"]), help="Instead of --on.")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), help="The last day, when it recurs, such as 2026-03-31.")
@click.option("--weeks", type=click.IntRange(1, 104), help="Instead of --until: for so many weeks.")
@click.option("--time-zone", help="Whose clock a recurring one goes by; this machine's unless given.")
@click.option("--dry-run", is_flag=True, help="Only say whether it fits.")
def create_reservation(
    session: Session,
    name: str,
    start: str,
    end: str | None,
    length_: int | None,
    reason: str | None,
    dry_run: bool,
    weekdays: tuple[str, ...],
    every: str | None,
    until: datetime | None,
    weeks: int | None,
    time_zone: str | None,
    labels: tuple[str, ...],
    prefer: tuple[str, ...],
    **given: Any,
) -> None:
    """Reserve GPUs for a window; above the pool's threshold it waits for approval."""
    days = {"day": EVERY_DAY, "weekday": EVERY_DAY[:5]}[every] if every else list(weekdays)
    if bool(days) != bool(until or weeks) or (every and weekdays) or (until and weeks):
        raise click.UsageError("A recurring one needs --every or --on, one of the two, and --until or --weeks.")
    if (end is None) == (length_ is None):
        raise click.UsageError("Give --end or --for, one of the two.")
    if length_ is not None:
        try:
            end = (datetime.fromisoformat(start) + timedelta(seconds=length_)).isoformat()
        except OverflowError:
            raise click.UsageError(f"--for {length_} seconds is beyond all calendars.") from None
    body = {"units": 1} | _body(session, given) | _labels(labels, prefer) | {"start": start, "end": end}
    path = "reservations/"
    if days:
        path = "series/"
        last = until or datetime.fromisoformat(start) + timedelta(days=7 * (weeks or 1) - 1)
        body |= {"weekdays": days, "until": f"{last:%Y-%m-%d}", "time_zone": time_zone or local_zone()}
    if dry_run:
        answer = session.client.post(f"{path}preview/", body)
        if session.json:
            return output.as_json(answer)
        output.say("It fits." if answer["fits"] else answer["sentence"])
        for change in answer.get("clock_changes", ()):
            output.say(change)
        for window in answer["windows"] if not answer["fits"] else []:
            output.say(f"It would fit from {local(window['start'])} to {local(window['end'])}.")
        return None
    body |= {"name": name} | ({"why": reason} if reason else {})
    answer = session.client.post(path, body)
    if session.json:
        return output.as_json(answer)
    if answer.get("series"):
        made = answer["series"]
        times = made["occurrences"]
        output.say(
            f"Confirmed: {made['name']} ({made['id']}), {len(times)} times, the first {local(times[0]['start'])} to "
            f"{local(times[0]['end'])}, the last {local(times[-1]['start'])} to {local(times[-1]['end'])}."
        )
        for change in made["clock_changes"]:
            output.say(change)
        return None
    if answer.get("reservation"):
        made = answer["reservation"]
        return output.say(f"Confirmed: {made['name']} ({made['id']}), {local(made['start'])} to {local(made['end'])}.")
    return output.say(f"Waits for approval ({answer['submission']['id']}): {answer['submission']['what']}.")


@command(reservation, "list")
@click.option("--all", "everything", is_flag=True, help="Those of your teams, and those that are over.")
def list_reservations(session: Session, everything: bool) -> None:
    """Your reservations."""
    query: dict[str, Any] = {} if everything else {"mine": True, "state": "open"}
    rows = list(session.client.pages("reservations/", **query))
    if session.json:
        return output.as_json(rows)
    return output.table(
        ("id", "name", "GPUs", "model", "pool", "start", "end", "state", "owner"),
        (
            (
                row["id"][:8],
                row["name"],
                row["units"] * row["hosts"],
                ", ".join(row["models"]),
                row["pool"],
                local(row["start"]),
                local(row["end"]),
                row["state"],
                row["owner"],
            )
            for row in rows
        ),
        "No reservations. Make one: gpupool reservation create --help",
    )


@command(reservation, "cancel")
@click.argument("id_", metavar="ID")
@click.option("--why", "reason", default="", help="Kept in the record.")
def cancel_reservation(session: Session, id_: str, reason: str) -> None:
    """Give a reservation up."""
    found = _named(session.client, id_, "reservations/", "reservation")
    answer = session.client.post(f"reservations/{found['id']}/cancel/", {"why": reason})
    output.as_json(answer) if session.json else output.say(f"{answer['name']} is cancelled.")


@command(reservation, "cancel-series")
@click.argument("id_", metavar="ID")
@click.option("--why", "reason", default="", help="Kept in the record.")
def cancel_series(session: Session, id_: str, reason: str) -> None:
    """Give up all that is left of a recurring reservation; ID is its own or that of an occurrence."""
    try:
        found = _named(session.client, id_, "series/", "recurring reservation")["id"]
    except Problem:
        found = _named(session.client, id_, "reservations/", "reservation")["series"]
    if not found:
        raise Problem(f"{id_} does not recur; give it up with: gpupool reservation cancel {id_}")
    answer = session.client.post(f"series/{found}/cancel/", {"why": reason})
    output.as_json(answer) if session.json else output.say(f"{answer['given_up']} occurrences are cancelled.")


@command(reservation, "move")
@click.argument("id_", metavar="ID")
@click.option(
    "--start", type=MOMENT, required=True, help="Its new start; as long as before unless --for says otherwise."
)
@click.option("--for", "length_", type=DURATION, help="Its new length.")
@click.option("--why", "reason", help="For the one who approves.")
def move_reservation(session: Session, id_: str, start: str, length_: int | None, reason: str | None) -> None:
    """Give a reservation that has not begun another start."""
    end = None if length_ is None else (datetime.fromisoformat(start) + timedelta(seconds=length_)).isoformat()
    _change(session, id_, {"start": start, "end": end, "why": reason})


@command(reservation, "extend")
@click.argument("id_", metavar="ID")
@click.option("--by", type=DURATION, help="Such as 2h.")
@click.option("--end", type=MOMENT, help="Its new end, instead of --by.")
@click.option("--why", "reason", help="For the one who approves.")
def extend_reservation(session: Session, id_: str, by: int | None, end: str | None, reason: str | None) -> None:
    """Let a reservation end later, where the calendar has room; one that has begun keeps its GPUs."""
    _change_end(session, id_, by, end, reason)


@command(reservation, "shorten")
@click.argument("id_", metavar="ID")
@click.option("--by", type=DURATION, help="Such as 2h.")
@click.option("--end", type=MOMENT, help="Its new end, instead of --by.")
def shorten_reservation(session: Session, id_: str, by: int | None, end: str | None) -> None:
    """Let a reservation end earlier."""
    _change_end(session, id_, None if by is None else -by, end, None)


def _change_end(session: Session, id_: str, by: int | None, end: str | None, reason: str | None) -> None:
    if (by is None) == (end is None):
        raise click.UsageError("Give --by or --end, one of the two.")
    if by is not None:
        found = _named(session.client, id_, "reservations/", "reservation")
        id_, end = found["id"], (datetime.fromisoformat(found["end"]) + timedelta(seconds=by)).isoformat()
    _change(session, id_, {"end": end, "why": reason})


def _change(session: Session, id_: str, wanted: dict[str, Any]) -> None:
    found = _named(session.client, id_, "reservations/", "reservation")
    body = {name: value for name, value in wanted.items() if value}
    answer = session.client.post(f"reservations/{found['id']}/change/", body)
    if session.json:
        return output.as_json(answer)
    if answer["reservation"]:
        made = answer["reservation"]
        return output.say(f"{made['name']} is now {local(made['start'])} to {local(made['end'])}.")
    return output.say(f"Waits for approval ({answer['submission']['id']}): {answer['submission']['what']}.")


# -- quotas and approvals ----------------------------------------------------------------------------------------------


@command(quota, "list")
def list_quotas(session: Session) -> None:
    """Guarantees of your teams."""
    rows = list(session.client.pages("quotas/"))
    if session.json:
        return output.as_json(rows)
    return output.table(
        ("team", "pool", "model", "guaranteed", "may borrow", "GPU-hours used"),
        (
            (
                row["team"],
                row["pool"],
                row["model"],
                f"{row['guaranteed_gpus']:.4g}",
                "any" if row["borrow_limit_gpus"] is None else f"{row['borrow_limit_gpus']:g}",
                f"{row['gpu_hours_used']:,.0f} of {row['gpu_hours']:,} a {row['period']}" if row["gpu_hours"] else "",
            )
            for row in rows
        ),
        "No team of yours has a quota.",
    )


@command(quota, "request")
@click.option("--team", required=True)
@click.option("--pool", help="Not needed when there is one only.")
@click.option("--model", required=True)
@click.option("--guaranteed-gpus", type=int, required=True)
@click.option("--borrow-limit-gpus", type=int, help="Any number unless given.")
@click.option("--gpu-hours", type=int, help="What the guarantee is worth in a period; without end unless given.")
@click.option("--period", type=click.Choice(["day", "week", "month"]))
@click.option("--when-used-up", type=click.Choice(["borrow", "refuse"]), help="Only borrow then, or start nothing new.")
@click.option("--why", "reason", default="", help="For the one who approves.")
def request_quota(session: Session, reason: str, pool: str | None, **given: Any) -> None:
    """Ask for another guarantee."""
    wanted = {name: value for name, value in given.items() if value is not None}
    answer = session.client.post(
        "quotas/requests/", {**wanted, "pool": pool or _only_pool(session.client), "why": reason}
    )
    output.as_json(answer) if session.json else output.say(f"Waits for approval ({answer['id']}): {answer['what']}.")


@command(approval, "list")
@click.option("--all", "everything", is_flag=True, help="Also what is decided.")
def list_approvals(session: Session, everything: bool) -> None:
    """What waits for approval, of what you may see."""
    rows = list(session.client.pages("approvals/", state=None if everything else "waiting"))
    if session.json:
        return output.as_json(rows)
    return output.table(
        ("id", "team", "author", "what", "why", "state"),
        ((row["id"][:8], row["team"], row["author"], row["what"], row["why"], row["state"]) for row in rows),
        "Nothing waits.",
    )


@command(approval, "approve")
@click.argument("id_", metavar="ID")
@click.option("--comment", default="")
def approve(session: Session, id_: str, comment: str) -> None:
    """Approve it as it is; see first what it does to others."""
    found = _named(session.client, id_, "approvals/", "submission")
    answer = session.client.post(f"approvals/{found['id']}/approve/", {"comment": comment})
    output.as_json(answer) if session.json else output.say(f"Approved: {answer['what']}.")


@command(approval, "decline")
@click.argument("id_", metavar="ID")
@click.option("--comment", required=True, help="Why.")
def decline(session: Session, id_: str, comment: str) -> None:
    """Decline it, with a reason."""
    found = _named(session.client, id_, "approvals/", "submission")
    answer = session.client.post(f"approvals/{found['id']}/decline/", {"comment": comment})
    output.as_json(answer) if session.json else output.say(f"Declined: {answer['what']}.")


# -- the fleet and its use ---------------------------------------------------------------------------------------------


@command(cli, "status")
def status(session: Session) -> None:
    """What each pool has and what is free now."""
    pools = session.client.get("pools/")
    if session.json:
        return output.as_json(pools)
    rows = [
        (
            pool["slug"],
            pool["kind"],
            each["model"],
            each["gpus"],
            f"{each['held_gpus']:.4g}",
            f"{each['free_gpus']:.4g}",
        )
        for pool in pools
        for each in pool["models"]
    ]
    return output.table(("pool", "kind", "model", "in all", "held", "free"), rows, "No pool has GPUs yet.")


@command(cli, "hosts")
@click.option("--pool", help="Of one pool.")
def hosts(session: Session, pool: str | None) -> None:
    """Hosts and their states."""
    rows = list(session.client.pages("hosts/", pool=pool))
    if session.json:
        return output.as_json(rows)
    now = datetime.now().astimezone()
    return output.table(
        ("host", "pool", "GPUs", "model", "lease", "service", "repair", "last heard", "why", "readings"),
        (
            (
                row["name"],
                row["pool"],
                len(row["gpus"]),
                ", ".join(sorted(set(row["gpus"]))),
                row["lease_state"],
                row["admin_state"].replace("_", " "),
                row["repair_state"],
                ago(row["last_sync_at"], now),
                row["state_reason"],
                "simulated" if row["simulated"] else "measured",
            )
            for row in rows
        ),
        "No hosts yet.",
    )


@command(cli, "host-is-off")
@click.argument("name")
@click.option("--why", required=True, help="What you saw; kept in the audit log.")
def host_is_off(session: Session, name: str, why: str) -> None:
    """You have seen a host powered off: its work starts elsewhere at once. For operators."""
    answer = session.client.post(f"hosts/{quote(name, safe='', errors='replace')}/attest-off/", {"why": why})
    if session.json:
        return output.as_json(answer)
    return output.say(f"{name} counts as powered off. Its work starts elsewhere.")


@command(pool, "isolation")
@click.argument("slug")
@click.argument("level", required=False, type=click.Choice(["none", "sandbox", "team_users", "limits"]))
@click.option("--reason", default="", help="Kept with the change.")
def pool_isolation(session: Session, slug: str, level: str | None, reason: str) -> None:
    """How well a pool's hosts have to keep workloads apart, and which of them do not; with LEVEL that is changed."""
    path = f"pools/{quote(slug, safe='', errors='replace')}/"
    if level is not None:
        session.client.put(f"{path}isolation/", {"isolation": level, "why": reason})
    found = session.client.get(path)
    rows = list(session.client.pages("hosts/", pool=slug))
    if session.json:
        return output.as_json({"isolation": found["isolation"], "hosts": rows})
    output.say(f"Hosts of {slug} need at least: {found['isolation']}.")
    return output.table(
        ("host", "isolation", "level", "lacks"),
        ((row["name"], row["isolation"], row["isolation_level"], ", ".join(row["isolation_lacking"])) for row in rows),
        "No hosts yet.",
    )


@command(volume, "list")
def list_volumes(session: Session) -> None:
    """Your home on each storage; also those of people in teams you lead."""
    rows = list(session.client.pages("volumes/"))
    if session.json:
        return output.as_json(rows)
    now = datetime.now().astimezone()
    return output.table(
        ("home", "hosts", "size", "files", "in use by", "last change", "measured"),
        (
            (
                row["name"],
                ", ".join(row["hosts"]),
                data_size(row["size_bytes"], row["size_complete"]),
                "unknown" if row["files"] is None else f"{row['files']:,}",
                row["running_workloads"],
                ago(row["changed_at"], now) if row["changed_at"] else "unknown",
                ago(row["measured_at"], now) if row["measured_at"] else "not yet",
            )
            for row in rows
        ),
        "No home yet: it is made when your first notebook or job starts.",
    )


@command(cli, "usage")
@click.option("--by", type=click.Choice(["team", "project", "user", "type", "model"]), default="team")
@click.option("--start", type=MOMENT, help="A week ago unless given.")
@click.option("--end", type=MOMENT, help="Now unless given.")
def usage(session: Session, by: str, start: str | None, end: str | None) -> None:
    """GPU-hours held and used, of what you may see."""
    answer = session.client.get("usage/", by=by, start=start, end=end)
    if session.json:
        return output.as_json(answer)
    rows = (
        (
            line["name"],
            f"{line['gpu_hours']:,.1f}",
            "unknown" if line["used_gpu_hours"] is None else f"{line['used_gpu_hours']:,.1f}",
            "unknown" if line["coverage"] is None else f"{line['coverage']:.0%}",
        )
        for line in answer["lines"]
    )
    return output.table((by, "hours", "used", "measured"), rows, "Nothing was held in that time.")


# -- shared ------------------------------------------------------------------------------------------------------------


def _body(session: Session, given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, under the API's names; project and pool where there is only one."""
    names = {"gpus": "units", "type_": "type", "max_runtime": "max_runtime_seconds", "inside": "reservation"}
    body = {names.get(name, name): value for name, value in given.items() if value not in (None, ())}
    if "models" in body:
        body["models"] = list(body["models"])
    if "reservation" in body:
        body["reservation"] = _named(session.client, body["reservation"], "reservations/", "reservation")["id"]
    body.setdefault("project", None)
    body["project"] = body["project"] or _only_project(session.client)
    body["pool"] = body.get("pool") or _only_pool(session.client)
    return body


def _only_project(client: Client) -> str:
    mine = {each["team"] for each in client.get("me/")["teams"]}
    found = [row["path"] for row in client.pages("projects/") if row["active"] and row["team"] in mine]
    if len(found) != 1:
        raise Problem(f"Name a project with --project: {', '.join(found) or 'you are in no team that has one'}.")
    return str(found[0])


def _only_pool(client: Client) -> str:
    pools = client.get("pools/")
    shared = [pool["slug"] for pool in pools if pool["kind"] == "dynamic"]
    names = shared if len(shared) == 1 else [pool["slug"] for pool in pools]
    if len(names) != 1:
        raise Problem(f"Name a pool with --pool: {', '.join(names) or 'there is none'}.")
    return str(names[0])


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{text!r}; allowed: NAME=VALUE.")
        pairs[name] = value
    return pairs


def _found(session: Session, id_: str) -> Any:
    return _named(session.client, id_, "workloads/", "notebook or job")


def _named(client: Client, id_: str, path: str, noun: str) -> Any:
    """One thing by its id, the beginning of it, or its name. Raises Problem when none or several are meant."""
    try:
        return client.get(f"{path}{uuid.UUID(id_)}/")
    except ValueError:
        pass
    word = id_.strip()
    found = [
        row for row in client.pages(path) if row["id"].startswith(word.lower()) or (word and row.get("name") == word)
    ]
    still = [row for row in found if row.get("state") in (*OPEN_STATES, "confirmed", "active", "waiting")]
    found = still or found
    if len(found) == 1 and word:
        return found[0]
    if not found or not word:
        raise Problem(f"There is no {noun} {id_!r} that you may see.", NOT_FOUND)
    raise Problem(f"{id_!r} could be {', '.join(row['id'][:8] for row in found[:5])}; give more of the id.", NOT_FOUND)


def _gpus(row: Any) -> str:
    count = f"{row['hosts']} hosts, each {row['units']}" if row["hosts"] > 1 else row["units"]
    return f"{count} x {' or '.join(row['models']) or 'any'}{' ' + row['profile'] if row['profile'] else ''}"


def _made(session: Session, made: Any) -> None:
    if session.json:
        return output.as_json(made)
    output.say(f"{made['name']} ({made['id']}) is {made['state']}: {_gpus(made)} in {made['pool']}.")
    return output.say(f"See why it waits: gpupool why {made['id'][:8]}") if made["state"] == "queued" else None


def _list(session: Session, path: str, everything: bool) -> None:
    query: dict[str, Any] = {} if everything else {"mine": True, "state": "open"}
    rows = list(session.client.pages(path, **query))
    if session.json:
        return output.as_json(rows)
    now = datetime.now().astimezone()
    return output.table(
        ("id", "name", "state", "GPUs", "pool", "submitted", "started", "owner"),
        (
            (
                row["id"][:8],
                row["name"],
                row["outcome"] if row["state"] == "ended" else row["state"],
                row["units"] * row["hosts"],
                row["pool"],
                ago(row["submitted_at"], now),
                ago(row["started_at"], now),
                row["owner"],
            )
            for row in rows
        ),
        "None. --all also shows those of your teams and those that ended.",
    )


def _cancel(session: Session, id_: str, reason: str) -> None:
    answer = session.client.post(f"workloads/{_found(session, id_)['id']}/cancel/", {"why": reason})
    if session.json:
        return output.as_json(answer)
    return output.say(f"{answer['name']} is {'cancelled' if answer['state'] == 'ended' else 'stopping'}.")


def _until_ready(session: Session, id_: str) -> Any:
    said = ""
    while True:
        answer = session.client.get(f"workloads/{id_}/")
        run_ = answer["runs"][0] if answer["runs"] else {}
        if answer["state"] == "ended":
            raise Problem(f"{answer['name']} ended before it was ready: {answer['outcome'].replace('_', ' ')}.")
        if run_.get("ready_at") and answer["state"] in ("running", "notice"):
            return answer
        words = f"{answer['state']}: {run_.get('step') or answer['reason']}".rstrip(": ")
        if words != said and not session.json:
            output.say(words)
        said = words
        time.sleep(POLL_SECONDS)


def _open(session: Session, workload: Any, print_only: bool) -> None:
    answer = session.client.post(f"workloads/{workload['id']}/open/")
    if session.json:
        return output.as_json(answer)
    if not print_only and webbrowser.open(answer["url"]):
        return output.say(f"{workload['name']} opens in the browser.")
    return print(answer["url"])


def _follow(session: Session, id_: str, attempt: int | None) -> None:
    """Print pieces as they come, over attempts, until it has ended; the exit code says how."""
    offset, shown, at_its_end = 0, attempt, False
    while True:
        now = session.client.get(f"workloads/{id_}/")
        current = attempt or max(now["attempt"], 1)
        if shown != current:
            offset, shown = 0, current
        piece = session.client.get(f"workloads/{id_}/logs/", offset=offset, attempt=current)
        sys.stdout.write(piece["text"])
        sys.stdout.flush()
        offset = piece["next_offset"]
        over = not piece["text"] and (now["state"] == "ended" or (attempt and piece["ended"]))
        if over and at_its_end:
            break
        at_its_end = bool(over)  # its last lines may come a moment after the word that it has ended
        if not piece["text"]:
            time.sleep(POLL_SECONDS)
    if now["state"] == "ended" and now["outcome"] != "finished":
        raise Problem(f"{now['name']} ended: {now['outcome'].replace('_', ' ')}.")


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and answer its exit code; every problem is one line on standard error."""
    try:
        cli.main(args=arguments, prog_name="gpupool", standalone_mode=False)
    except Problem as problem:
        _complain(problem.message, *problem.lines)
        return problem.code
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort:
        return 130
    except click.UsageError as problem:
        _complain(problem.format_message(), *([f"See: {problem.ctx.command_path} --help"] if problem.ctx else []))
        return problem.exit_code
    except click.ClickException as problem:
        _complain(problem.format_message())
        return problem.exit_code
    except BrokenPipeError:
        # Whoever read us has gone (| head): nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnicodeError:
        _complain("an argument or an answer is no readable text.")
        return USAGE
    except OSError as problem:
        _complain(f"{problem.filename or 'this machine'}: {problem.strerror}")
        return UNREACHABLE
    return 0


def _complain(first: str, *more: str) -> None:
    print(f"gpupool: {first}", *(f"  {line}" for line in more), sep="\n", file=sys.stderr)


# Its commands join these; it needs what is above.
from cli import hosts as _commands_of_hosts  # noqa: E402, F401
