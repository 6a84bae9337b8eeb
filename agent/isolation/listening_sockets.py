"""Lists the listening sockets of the host, and the ports to close to each team user."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterable
from pathlib import Path

TCP_LISTEN_STATE = "0A"  # a TCP socket's state in /proc/net/tcp; a bound UDP socket has 07


ANY_4, ANY_6 = "0.0.0.0", "::"  # of who listens on every address


LISTENER_TABLES = (("tcp", TCP_LISTEN_STATE), ("tcp6", TCP_LISTEN_STATE), ("udp", "07"), ("udp6", "07"))


ListeningSocket = tuple[int, str, str, int]  # user, tcp or udp, address, port


def listening_sockets() -> Iterable[ListeningSocket]:
    """Every socket of this network that takes what others send."""
    for name, state in LISTENER_TABLES:
        try:
            lines = Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue  # no IPv6 here
        for line in lines:
            fields = line.split()
            if fields[3] == state:
                address, port = fields[1].rsplit(":", 1)
                yield int(fields[7]), name.removesuffix("6"), _parse_proc_address(address), int(port, 16)


def ports_to_close(users: Iterable[int], listening: list[ListeningSocket]) -> set[ListeningSocket]:
    """For each user the places on which somebody else listens, and not the user too.

    By address: a port is not open to a user who listens on it at another address, nor closed to who listens there first.
    """
    own = set(listening)
    closed = set()
    for user in users:
        for owner, kind, address, port in own:
            if owner == user:
                continue
            closed.add((user, kind, address, port))
            # Who listens on all of IPv6 may do so on all of IPv4; but not where the user has that port of IPv4.
            has = {each for who, what, each, which in own if (who, what, which) == (user, kind, port)}
            if address == ANY_6 and not any(":" not in each for each in has):
                closed.add((user, kind, ANY_4, port))
    return closed - own


def _parse_proc_address(text: str) -> str:
    """An address as /proc writes it: words of 32 bits in the order of this machine."""
    words = [bytes.fromhex(text[at : at + 8]) for at in range(0, len(text), 8)]
    raw = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    if len(raw) == 4:
        return str(ipaddress.IPv4Address(raw))
    found = ipaddress.IPv6Address(raw)
    return str(found.ipv4_mapped or found)
