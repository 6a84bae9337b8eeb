"""Finds the address at which other hosts reach this host, and the network interface of an address."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

SIOCGIFADDR = 0x8915  # netdevice(7): the IPv4 address of an interface


def local_address_towards(edge: str) -> str:
    """Return the local address of this host on the route to the edge; '' if there is no route.

    ``edge`` is the URL of the server. The call sends no packet, except for the lookup of the server's name.
    Other hosts can't reach this address if this host is behind address translation, or if the edge runs on
    this machine. In these cases the operator must configure an address.
    """
    parts = urlsplit(edge)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return ""


def interface_of(address: str) -> str:
    """Return the name of the interface that has this IP address; '' if no interface of this host has it."""
    with suppress(ValueError):
        wanted = ipaddress.ip_address(address)
        return _interface_with_ipv4(wanted) if wanted.version == 4 else _interface_with_ipv6(wanted)
    return ""


def _interface_with_ipv4(wanted: ipaddress.IPv4Address) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if answer[20:24] == wanted.packed:
                    return name
    return ""


def _interface_with_ipv6(wanted: ipaddress.IPv6Address) -> str:
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            if digits == wanted.packed.hex():
                return name
    return ""
