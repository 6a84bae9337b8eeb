"""Check and choose TCP ports on loopback."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
from pathlib import Path

from tools.console import RunError

TCP_LISTEN = "0A"  # the state's code in /proc/net/tcp


def port_number(text: str) -> int:
    """Return a port that was given on the command line.

    It is below 65535, because the next higher port is used too.
    """
    if not text.isdigit() or not 1 <= int(text) <= 65534:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; allowed: 1 to 65534")
    return int(text)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(port: int) -> None:
    """Raise RunError if the port is in use, and name the process that uses it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            found = f"port {port} is in use{_user_of(port)}"
            raise RunError(f"{found}; choose another with --port N (N+1 is used too)") from None


def _user_of(port: int) -> str:
    """Return " by NAME (pid N)" for the process that uses the port; "" if it cannot be found."""
    addresses = f"0100007F:{port:04X}", f"00000000:{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[1] in addresses and row[3] == TCP_LISTEN}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            target = os.readlink(descriptor)
            if target.startswith("socket:[") and target[8:-1] in inodes:
                pid = descriptor.parts[2]
                return f" by {Path(f'/proc/{pid}/comm').read_text().strip()} (pid {pid})"
    return ""
