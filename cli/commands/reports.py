"""Define the command that shows the report of a notebook or a job."""

from __future__ import annotations

from typing import Any

import click

from cli import output
from cli.formatting import format_bytes, format_duration, format_gibibytes, format_local_time
from cli.lookup import find_workload
from cli.session import CliSession, cli, command

NOT_MEASURED = "not measured"


@command(cli, "report")
@click.argument("id_", metavar="ID")
def report(session: CliSession, id_: str) -> None:
    """Show what a notebook or job used on each GPU, its waits, its cost, and what to ask for next time."""
    answer = session.client.get(f"workloads/{find_workload(session, id_)['id']}/report/")
    if session.json:
        return output.print_json(answer)
    output.print_facts(
        [
            ("name", answer["name"]),
            ("state", answer["outcome"] or answer["state"]),
            ("held GPUs", f"{format_local_time(answer['start'])} to {format_local_time(answer['end'])}"),
            ("waited", _waits(answer)),
            ("GPUs with work", f"{_number(answer['busy_at_once'])} of {answer['asked_gpus']} at once"),
            ("utilisation", _percent(answer["utilisation"])),
            ("SM active", _percent(answer["sm_active"])),
            ("tensor active", _percent(answer["tensor_active"])),
            ("energy", _amount(answer["energy_kwh"], "kWh")),
            ("CPU time", _time(answer["cpu_seconds"])),
            ("memory at most", _memory(answer["memory_peak_mib"])),
            ("disk read", _bytes(answer["host_totals"]["io_read_bytes"])),
            ("disk written", _bytes(answer["host_totals"]["io_written_bytes"])),
            ("received", _bytes(answer["host_totals"]["network_rx_bytes"])),
            ("sent", _bytes(answer["host_totals"]["network_tx_bytes"])),
            ("cost", "hidden" if answer["cost_hidden"] else _cost(answer["cost"])),
            ("measured", _percent(answer["coverage"])),
            ("final", "yes" if answer["final"] else "no: samples may still arrive"),
        ]
    )
    _print_gpus(answer["gpus"])
    for advice in answer["advice"]:
        output.print_line(f"{advice['headline']}. {advice['evidence']}")
    _print_earlier_start(answer["earlier_start"])
    _print_charge_lines(answer["charge_lines"])
    return None


def _print_gpus(gpus: list[dict[str, Any]]) -> None:
    output.print_table(
        ("host", "GPU", "profile", "held", "busy", "SM", "tensor", "memory at most", "energy"),
        (
            (
                gpu["host"],
                str(gpu["gpu"]),
                gpu["profile"],
                format_duration(int(gpu["held_seconds"])),
                _percent(gpu["busy"]),
                _percent(gpu["sm_active"]),
                _percent(gpu["tensor_active"]),
                _memory(gpu["memory_peak_mib"]),
                _amount(gpu["energy_kwh"], "kWh"),
            )
            for gpu in gpus
        ),
        "",
    )


def _print_earlier_start(earlier: dict[str, Any] | None) -> None:
    if earlier is not None:
        output.print_line(
            f"In the 4 weeks before, {earlier['requests']} requests for {earlier['gpus']} GPUs in this pool "
            f"waited {format_duration(int(earlier['median_seconds']))} (median). It might have started "
            f"{format_duration(int(earlier['earlier_seconds']))} earlier."
        )


def _print_charge_lines(lines: list[dict[str, Any]]) -> None:
    """Print price x GPUs x seconds of each time with one price."""
    if lines:
        output.print_table(
            ("from", "to", "what", "seconds", "GPUs", "price of a GPU-hour", "charged"),
            (
                (
                    format_local_time(line["start"]),
                    format_local_time(line["end"]),
                    line["bucket"],
                    str(line["seconds"]),
                    f"{line['gpus']:g}",
                    line["price"] or "none",
                    f"{line['charged']} {line['currency']}".strip(),
                )
                for line in lines
            ),
            "",
        )


def _waits(answer: dict[str, Any]) -> str:
    waited = format_duration(int(answer["waited_seconds"]))
    gaps = len(answer["gaps"])
    between = format_duration(int(answer["gap_seconds"]))
    return f"{waited}, and {between} in {gaps} gap{'' if gaps == 1 else 's'}" if gaps else waited


def _percent(share: float | None) -> str:
    return NOT_MEASURED if share is None else f"{share * 100:.0f} %"


def _time(seconds: float | None) -> str:
    return NOT_MEASURED if seconds is None else format_duration(int(seconds))


def _number(value: int | None) -> str:
    return NOT_MEASURED if value is None else str(value)


def _amount(value: float | None, unit: str) -> str:
    return NOT_MEASURED if value is None else f"{value:,.2f} {unit}"


def _memory(mib: int | None) -> str:
    return NOT_MEASURED if mib is None else format_gibibytes(mib)


def _bytes(count: int | None) -> str:
    return NOT_MEASURED if count is None else format_bytes(count)


def _cost(costs: list[dict[str, str]] | None) -> str:
    if costs is None:
        return "unknown"
    return " + ".join(f"{cost['currency']} {cost['amount']}" for cost in costs) or "nothing"
