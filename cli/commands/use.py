"""Define the commands that show the current use of a notebook or job, and of a host."""

from __future__ import annotations

from typing import Any

import click

from cli import output
from cli.formatting import format_bytes, format_duration, format_gibibytes, format_local_time
from cli.host_group import host, host_path
from cli.lookup import find_workload
from cli.request_options import TIMESTAMP_TYPE
from cli.session import CliSession, cli, command

NOT_MEASURED = "not measured"
NANOSECONDS = "_ns"
NANOSECONDS_PER_SECOND = 1e9
AMOUNTS = ("now", "mean", "peak")


@command(cli, "use")
@click.argument("id_", metavar="ID")
def use(session: CliSession, id_: str) -> None:
    """Show the CPU time, memory, disk and network use of a notebook or job, and its processes on GPUs."""
    answer = session.client.get(f"workloads/{find_workload(session, id_)['id']}/use/")
    if session.json:
        return output.print_json(answer)
    output.print_table(
        ("host", "read", "CPU time", "memory", "peak", "disk read", "disk written", "received", "sent"),
        (
            (
                run["host"],
                format_local_time(run["at"]),
                NOT_MEASURED if run["cpu_seconds"] is None else format_duration(int(run["cpu_seconds"])),
                _memory(run["memory_mib"]),
                _memory(run["memory_peak_mib"]),
                *(_bytes(run[name]) for name in ("io_read_bytes", "io_written_bytes")),
                *(_bytes(run[name]) for name in ("network_rx_bytes", "network_tx_bytes")),
            )
            for run in answer["runs"]
        ),
        "It has not run yet.",
    )
    if answer["processes"] is None:
        return None
    return output.print_table(
        ("host", "GPU", "profile", "process", "program", "SM share", "GPU memory"),
        (
            (
                each["host"],
                each["gpu"],
                each["profile"],
                each["pid"],
                each["name"],
                NOT_MEASURED if each["sm_percent"] is None else f"{each['sm_percent']:.0f} %",
                _memory(each["memory_mib"]),
            )
            for each in answer["processes"]
        ),
        "No process of it is on a GPU now.",
    )


@command(host, "use")
@click.argument("name")
def host_use(session: CliSession, name: str) -> None:
    """Show the use of CPU, memory, disks and networks in the last hour, and the counters of the GPUs."""
    answer = session.client.get(host_path(name, "use"))
    if session.json:
        return output.print_json(answer)
    found = answer["use"]
    if found is None:
        output.print_line("Its agent has reported no use in the last hour.")
    else:
        output.print_table(("use", "now", "mean of 1 h", "peak of 1 h"), _use_rows(found), "")
        if found["disk_free_bytes"] is not None:
            free, size = format_bytes(found["disk_free_bytes"]), format_bytes(found["disk_bytes"])
            output.print_line(f"{free} of {size} are free on the disk of the agent's state.")
    return output.print_table(
        ("GPU", "counter", "value", "source", "since"),
        (
            (row["gpu"], row["label"], _counter(row), row["source"], format_local_time(row["since"]))
            for row in answer["counters"]
        ),
        "No counter of its GPUs is above 0.",
    )


@command(host, "counters")
@click.argument("name")
@click.option("--start", type=TIMESTAMP_TYPE, required=True, help="Start of the period.")
@click.option("--end", type=TIMESTAMP_TYPE, required=True, help="At most 400 days after the start.")
@click.option("--reading", help="Only this counter or flag, such as ecc_corrected or pcie_replays.")
def host_counters(session: CliSession, name: str, **query: Any) -> None:
    """Show the counters of a host's GPUs over time: PCIe, NVLink, ECC, remapped rows, throttling."""
    answer = session.client.get(host_path(name, "counters"), **query)
    if session.json:
        return output.print_json(answer)
    return output.print_table(
        ("GPU", "counter", "source", "at", "value"),
        (
            (
                each["gpu"],
                each["reading"],
                each["source"],
                format_local_time(point["at"]),
                _counter({"reading": each["reading"], "value": point["value"]}),
            )
            for each in answer["series"]
            for point in each["points"]
        ),
        "No counter of its GPUs has changed in this period.",
    )


def _use_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    cores, memory = found["cpu_cores"], found["memory_mib"]
    rows = [
        ("CPU cores", *("-" if cores[name] is None else f"{cores[name]:,.1f}" for name in AMOUNTS)),
        ("memory", *(_memory(memory[name]) for name in AMOUNTS)),
    ]
    for devices, ways in (("disks", ("read", "written")), ("networks", ("received", "sent"))):
        for device in found[devices]:
            for way in ways:
                amounts = device[way]
                rows.append((f"{device['name']}, {way}", *(_rate(amounts[name]) for name in AMOUNTS)))
    return rows


def _memory(mib: float | None) -> str:
    return NOT_MEASURED if mib is None else format_gibibytes(round(mib))


def _bytes(count: int | None) -> str:
    return NOT_MEASURED if count is None else format_bytes(count)


def _rate(bytes_per_second: float | None) -> str:
    return "-" if bytes_per_second is None else f"{format_bytes(round(bytes_per_second))}/s"


def _counter(row: dict[str, Any]) -> str:
    if row["reading"].endswith(NANOSECONDS):
        return f"{row['value'] / NANOSECONDS_PER_SECOND:,.1f} s"
    return f"{row['value']:,}"
