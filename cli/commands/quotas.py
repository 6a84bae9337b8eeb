"""Define the commands about quotas and approvals."""

from __future__ import annotations

from typing import Any

import click

from cli import output
from cli.lookup import find_by_id_or_name
from cli.request_options import only_pool
from cli.session import CliSession, cli, command


@cli.group()
def quota() -> None:
    """Show and request quotas, which are the guarantees of teams."""


@cli.group()
def approval() -> None:
    """List, approve and decline submissions that wait for approval."""


@command(quota, "list")
def list_quotas(session: CliSession) -> None:
    """List the guarantees of your teams."""
    rows = list(session.client.pages("quotas/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("team", "pool", "model", "guaranteed", "may borrow", "GPU-hours used"),
        (
            (
                row["team"],
                row["pool"],
                row["model"],
                f"{row['guaranteed_gpus']:.4g}",
                "any" if row["borrow_limit_gpus"] is None else f"{row['borrow_limit_gpus']:g}",
                f"{row['gpu_hours_used']:,.0f} of {row['gpu_hours']:,} a {row['period']}"
                if row["gpu_hours"]
                else "",
            )
            for row in rows
        ),
        "No team of yours has a quota.",
    )


@command(quota, "request")
@click.option("--team", required=True)
@click.option("--pool", help="May be omitted if there is only one.")
@click.option("--model", required=True)
@click.option("--guaranteed-gpus", type=int)
@click.option("--borrow-limit-gpus", type=int)
@click.option("--no-borrow-limit", is_flag=True, help="The team may borrow any number.")
@click.option("--gpu-hours", type=int, help="GPU-hours that the guarantee covers per period.")
@click.option("--no-gpu-hours", is_flag=True, help="The guarantee holds without a limit of GPU-hours.")
@click.option("--period", type=click.Choice(["day", "week", "month"]))
@click.option(
    "--when-used-up",
    type=click.Choice(["borrow", "refuse"]),
    help="When the GPU-hours are used up: only borrow, or start nothing new.",
)
@click.option("--why", "reason", default="", help="For the approver.")
def request_quota(
    session: CliSession,
    reason: str,
    pool: str | None,
    no_borrow_limit: bool,
    no_gpu_hours: bool,
    **given: Any,
) -> None:
    """Request other values of a quota. Values without an option stay as they are."""
    wanted = {name: value for name, value in given.items() if value is not None}
    for name, flag, lifted in (
        ("borrow_limit_gpus", "--no-borrow-limit", no_borrow_limit),
        ("gpu_hours", "--no-gpu-hours", no_gpu_hours),
    ):
        if lifted and name in wanted:
            raise click.UsageError(f"{flag} and --{name.replace('_', '-')} are given; allowed: one of them.")
        if lifted:
            wanted[name] = None
    answer = session.client.post(
        "quotas/requests/", {**wanted, "pool": pool or only_pool(session.client), "why": reason}
    )
    output.print_json(answer) if session.json else output.print_line(
        f"Waits for approval ({answer['id']}): {answer['what']}."
    )


@command(approval, "list")
@click.option("--all", "everything", is_flag=True, help="Also decided submissions.")
def list_approvals(session: CliSession, everything: bool) -> None:
    """List submissions that wait for approval, as far as you may see them."""
    rows = list(session.client.pages("approvals/", state=None if everything else "waiting"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("id", "team", "author", "what", "why", "state"),
        ((row["id"][:8], row["team"], row["author"], row["what"], row["why"], row["state"]) for row in rows),
        "No submission waits for approval.",
    )


@command(approval, "approve")
@click.argument("id_", metavar="ID")
@click.option("--comment", default="")
def approve(session: CliSession, id_: str, comment: str) -> None:
    """Approve a submission without changes. Check first how it affects others."""
    found = find_by_id_or_name(session.client, id_, "approvals/", "submission")
    answer = session.client.post(f"approvals/{found['id']}/approve/", {"comment": comment})
    output.print_json(answer) if session.json else output.print_line(f"Approved: {answer['what']}.")


@command(approval, "decline")
@click.argument("id_", metavar="ID")
@click.option("--comment", required=True, help="Why.")
def decline(session: CliSession, id_: str, comment: str) -> None:
    """Decline a submission, with a reason."""
    found = find_by_id_or_name(session.client, id_, "approvals/", "submission")
    answer = session.client.post(f"approvals/{found['id']}/decline/", {"comment": comment})
    output.print_json(answer) if session.json else output.print_line(f"Declined: {answer['what']}.")
