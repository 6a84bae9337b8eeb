"""Lists the listening sockets of the host, and the ports that each team user must not reach."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterable
from pathlib import Path

TCP_LISTEN_STATE = "0A"  # state of a listening TCP socket in /proc/net/tcp; a bound UDP socket has 07


ANY_4, ANY_6 = "0.0.0.0", "::"  # the address of a socket that listens on every IPv4 or IPv6 address


LISTENER_TABLES = (("tcp", TCP_LISTEN_STATE), ("tcp6", TCP_LISTEN_STATE), ("udp", "07"), ("udp6", "07"))


ListeningSocket = tuple[int, str, str, int]  # uid, "tcp" or "udp", address, port


def listening_sockets() -> Iterable[ListeningSocket]:
    """Yield every socket in this network namespace that accepts traffic from other processes."""
    for name, state in LISTENER_TABLES:
        try:
            lines = Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue  # this host has no IPv6
        for line in lines:
            fields = line.split()
            if fields[3] == state:
                address, port = fields[1].rsplit(":", 1)
                yield int(fields[7]), name.removesuffix("6"), _parse_proc_address(address), int(port, 16)


def ports_to_close(users: Iterable[int], listening: list[ListeningSocket]) -> set[ListeningSocket]:
    """Return (user, protocol, address, port) for each socket that one of ``users`` must not reach.

    A user must not reach the sockets of other users. There is one exception: if two users listen on the same
    port at the same address, this port stays open to both.
    """
    listening_set = set(listening)
    closed = set()
    for user in users:
        for owner, kind, address, port in listening_set:
            if owner == user:
                continue
            closed.add((user, kind, address, port))
            # A socket on all IPv6 addresses may also accept IPv4. Close the port for IPv4 too, unless the
            # user listens on this port at an IPv4 address.
            own_addresses = {a for u, k, a, p in listening_set if (u, k, p) == (user, kind, port)}
            if address == ANY_6 and all(":" in own for own in own_addresses):
                closed.add((user, kind, ANY_4, port))
    return closed - listening_set


def _parse_proc_address(text: str) -> str:
    """Return the IP address of a field in /proc/net.

    The field consists of 32-bit words in the byte order of this machine.
    """
    words = [bytes.fromhex(text[at : at + 8]) for at in range(0, len(text), 8)]
    raw = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    if len(raw) == 4:
        return str(ipaddress.IPv4Address(raw))
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)
