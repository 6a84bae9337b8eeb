"""Define the commands about reservations: GPUs for a window, once or recurring."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from cli import output
from cli.errors import CliError
from cli.formatting import format_local_time
from cli.local_zone import local_zone_name
from cli.lookup import find_by_id_or_name
from cli.request_options import DURATION_TYPE, TIMESTAMP_TYPE, request_body, request_options
from cli.session import CliSession, cli, command

WEEKDAY_NAMES = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAY_TYPE = click.Choice(WEEKDAY_NAMES)


@cli.group()
def reservation() -> None:
    """Reserve GPUs for a window."""


@command(reservation, "create")
@request_options("reservation")
@click.option(
    "--start", type=TIMESTAMP_TYPE, required=True, help="Such as 'tomorrow 09:00' or 2026-03-02T09:00."
)
@click.option("--end", type=TIMESTAMP_TYPE, help="End of the window, in the format of --start.")
@click.option("--for", "length_", type=DURATION_TYPE, help="Length instead of --end, such as 8h.")
@click.option(
    "--may-exceed-guarantee", is_flag=True, default=None, help="Request GPUs of other teams' guarantees."
)
@click.option("--why", "reason", help="For the approver.")
@click.option(
    "--on",
    "weekdays",
    multiple=True,
    type=WEEKDAY_TYPE,
    help="Recur on this weekday. May be given several times.",
)
@click.option("--every", type=click.Choice(["day", "weekday"]), help="Instead of --on.")
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%d"]),
    help="Last day of a recurring reservation, such as 2026-03-31.",
)
@click.option("--weeks", type=click.IntRange(1, 104), help="Number of weeks instead of --until.")
@click.option("--time-zone", help="Time zone of a recurring reservation; default: this machine's.")
@click.option("--dry-run", is_flag=True, help="Only show whether the reservation fits.")
def create_reservation(
    session: CliSession,
    name: str | None,
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
    **given: Any,
) -> None:
    """Reserve GPUs for a window. Reservations above the pool's threshold need approval."""
    days = _recurring_days(weekdays, every, until, weeks)
    body = {"units": 1} | request_body(session, given) | {"start": start, "end": _end(start, end, length_)}
    path = "reservations/"
    if days:
        path = "series/"
        last = until or datetime.fromisoformat(start) + timedelta(days=7 * (weeks or 1) - 1)
        body |= {"weekdays": days, "until": f"{last:%Y-%m-%d}", "time_zone": time_zone or local_zone_name()}
    if dry_run:
        return _print_fit(session, session.client.post(f"{path}preview/", body))
    body |= {"name": name or "Reservation"} | ({"why": reason} if reason else {})
    return _print_confirmation(session, session.client.post(path, body))


def _recurring_days(
    weekdays: tuple[str, ...], every: str | None, until: datetime | None, weeks: int | None
) -> list[str]:
    """Return the weekdays of a recurring reservation; an empty list for a single reservation.

    Raises click.UsageError if the options contradict each other or are incomplete.
    """
    days = {"day": WEEKDAY_NAMES, "weekday": WEEKDAY_NAMES[:5]}[every] if every else list(weekdays)
    if bool(days) != bool(until or weeks) or (every and weekdays) or (until and weeks):
        raise click.UsageError(
            "A recurring reservation needs either --every or --on, and either --until or --weeks."
        )
    return list(days)


def _end(start: str, end: str | None, length_seconds: int | None) -> str:
    """Return the end of the reservation, from ``--end`` or from ``--for``.

    Raises click.UsageError unless exactly one of these options is given.
    """
    if end is not None and length_seconds is None:
        return end
    if length_seconds is None or end is not None:
        raise click.UsageError("Give either --end or --for.")
    try:
        return (datetime.fromisoformat(start) + timedelta(seconds=length_seconds)).isoformat()
    except OverflowError:
        raise click.UsageError(f"--for {length_seconds} seconds is longer than the calendar.") from None


def _print_fit(session: CliSession, answer: dict[str, Any]) -> None:
    """Print whether a reservation fits. If it does not fit, also print the windows in which it would fit."""
    if session.json:
        return output.print_json(answer)
    output.print_line("It fits." if answer["fits"] else answer["sentence"])
    for line in (*answer.get("clock_changes", ()), *answer.get("warnings", ())):
        output.print_line(line)
    for window in answer["windows"] if not answer["fits"] else []:
        output.print_line(f"It would fit from {_window_text(window)}.")
    return None


def _print_confirmation(session: CliSession, answer: dict[str, Any]) -> None:
    """Print the created reservation or series, or the submission that waits for approval."""
    if session.json:
        return output.print_json(answer)
    if answer.get("series"):
        made = answer["series"]
        times = made["occurrences"]
        output.print_line(
            f"Confirmed: {made['name']} ({made['id']}), {len(times)} times, "
            f"the first {_window_text(times[0])}, the last {_window_text(times[-1])}."
        )
        for change in made["clock_changes"]:
            output.print_line(change)
        return None
    if answer.get("reservation"):
        made = answer["reservation"]
        return output.print_line(f"Confirmed: {made['name']} ({made['id']}), {_window_text(made)}.")
    return output.print_line(
        f"Waits for approval ({answer['submission']['id']}): {answer['submission']['what']}."
    )


def _window_text(row: dict[str, Any]) -> str:
    return f"{format_local_time(row['start'])} to {format_local_time(row['end'])}"


@command(reservation, "list")
@click.option(
    "--all", "everything", is_flag=True, help="Also reservations of your teams, and past reservations."
)
def list_reservations(session: CliSession, everything: bool) -> None:
    """List your reservations."""
    query: dict[str, Any] = {} if everything else {"mine": True, "state": "open"}
    rows = list(session.client.pages("reservations/", **query))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("id", "name", "GPUs", "model", "pool", "start", "end", "state", "owner"),
        (
            (
                row["id"][:8],
                row["name"],
                row["units"] * row["hosts"],
                ", ".join(row["models"]),
                row["pool"],
                format_local_time(row["start"]),
                format_local_time(row["end"]),
                row["state"],
                row["owner"],
            )
            for row in rows
        ),
        "No reservations. Make one: gpupool reservation create --help",
    )


@command(reservation, "cancel")
@click.argument("id_", metavar="ID")
@click.option("--why", "reason", default="", help="Stored in the audit log.")
def cancel_reservation(session: CliSession, id_: str, reason: str) -> None:
    """Cancel a reservation."""
    found = find_by_id_or_name(session.client, id_, "reservations/", "reservation")
    answer = session.client.post(f"reservations/{found['id']}/cancel/", {"why": reason})
    output.print_json(answer) if session.json else output.print_line(f"{answer['name']} is cancelled.")


@command(reservation, "cancel-series")
@click.argument("id_", metavar="ID")
@click.option("--why", "reason", default="", help="Stored in the audit log.")
def cancel_series(session: CliSession, id_: str, reason: str) -> None:
    """Cancel all remaining occurrences of a recurring reservation. ID: the series or any occurrence."""
    try:
        found = find_by_id_or_name(session.client, id_, "series/", "recurring reservation")["id"]
    except CliError:
        found = find_by_id_or_name(session.client, id_, "reservations/", "reservation")["series"]
    if not found:
        raise CliError(f"{id_} does not recur; cancel it with: gpupool reservation cancel {id_}")
    answer = session.client.post(f"series/{found}/cancel/", {"why": reason})
    output.print_json(answer) if session.json else output.print_line(
        f"{answer['given_up']} occurrences are cancelled."
    )


@command(reservation, "move")
@click.argument("id_", metavar="ID")
@click.option(
    "--start",
    type=TIMESTAMP_TYPE,
    required=True,
    help="New start; the length stays unless --for is given.",
)
@click.option("--for", "length_", type=DURATION_TYPE, help="New length.")
@click.option("--why", "reason", help="For the approver.")
def move_reservation(
    session: CliSession, id_: str, start: str, length_: int | None, reason: str | None
) -> None:
    """Change the start of a reservation that has not begun."""
    end = (
        None if length_ is None else (datetime.fromisoformat(start) + timedelta(seconds=length_)).isoformat()
    )
    _post_change(session, id_, {"start": start, "end": end, "why": reason})


@command(reservation, "extend")
@click.argument("id_", metavar="ID")
@click.option("--by", type=DURATION_TYPE, help="Such as 2h.")
@click.option("--end", type=TIMESTAMP_TYPE, help="New end, instead of --by.")
@click.option("--why", "reason", help="For the approver.")
def extend_reservation(
    session: CliSession, id_: str, by: int | None, end: str | None, reason: str | None
) -> None:
    """Let a reservation end later, if the calendar allows it. An active reservation keeps its GPUs."""
    _change_end(session, id_, by, end, reason)


@command(reservation, "shorten")
@click.argument("id_", metavar="ID")
@click.option("--by", type=DURATION_TYPE, help="Such as 2h.")
@click.option("--end", type=TIMESTAMP_TYPE, help="New end, instead of --by.")
def shorten_reservation(session: CliSession, id_: str, by: int | None, end: str | None) -> None:
    """Let a reservation end earlier."""
    _change_end(session, id_, None if by is None else -by, end, None)


def _change_end(session: CliSession, id_: str, by: int | None, end: str | None, reason: str | None) -> None:
    if (by is None) == (end is None):
        raise click.UsageError("Give either --by or --end.")
    if by is not None:
        found = find_by_id_or_name(session.client, id_, "reservations/", "reservation")
        id_, end = found["id"], (datetime.fromisoformat(found["end"]) + timedelta(seconds=by)).isoformat()
    _post_change(session, id_, {"end": end, "why": reason})


def _post_change(session: CliSession, id_: str, wanted: dict[str, Any]) -> None:
    found = find_by_id_or_name(session.client, id_, "reservations/", "reservation")
    body = {name: value for name, value in wanted.items() if value}
    answer = session.client.post(f"reservations/{found['id']}/change/", body)
    if session.json:
        return output.print_json(answer)
    if answer["reservation"]:
        made = answer["reservation"]
        return output.print_line(
            f"{made['name']} is now {format_local_time(made['start'])} to {format_local_time(made['end'])}."
        )
    return output.print_line(
        f"Waits for approval ({answer['submission']['id']}): {answer['submission']['what']}."
    )
