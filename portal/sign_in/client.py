"""Find out from which address and with which program a request was sent."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest

MAX_AGENT_LENGTH = 200
MAX_FORWARDED_ADDRESSES = 50
IPV6_NETWORK_BITS = 64  # a network provider gives one customer at least a network of this size
UNKNOWN_ADDRESS = "unknown"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class ClientDetails:
    """The address of a client, and the text of its User-Agent header, shortened."""

    address: str
    agent: str

    @property
    def network(self) -> str:
        """Return the address, and for IPv6 only its first 64 bits: one client has all these addresses."""
        found = _parsed(self.address)
        if not isinstance(found, ipaddress.IPv6Address):
            return self.address
        return str(ipaddress.ip_network((found, IPV6_NETWORK_BITS), strict=False).network_address)


def client_of(request: HttpRequest) -> ClientDetails:
    """Return the details of the client that sent the request."""
    agent = "".join(c for c in request.headers.get("User-Agent", "") if c.isprintable())
    return ClientDetails(client_address(request), agent[:MAX_AGENT_LENGTH])


def client_address(request: HttpRequest) -> str:
    """Return the address of the client.

    The header X-Forwarded-For counts only if a trusted proxy sent the request (GPUPOOL_TRUSTED_PROXIES). Each
    proxy appends the address of its sender. So the client is the last address that is not a trusted proxy.
    Addresses before it were written by the client and may be forged.
    """
    address = _parsed(request.META.get("REMOTE_ADDR", ""))
    if address is None:
        return UNKNOWN_ADDRESS
    forwarded = request.headers.get("X-Forwarded-For", "").split(",")[-MAX_FORWARDED_ADDRESSES:]
    for text in reversed(forwarded):
        if not _is_trusted_proxy(address):
            break
        sender = _parsed(text)
        if sender is None:
            break
        address = sender
    return str(address)


def _is_trusted_proxy(address: Address) -> bool:
    return any(address in network for network in settings.GPUPOOL_TRUSTED_PROXIES)


def _parsed(text: str) -> Address | None:
    """Return the address in a text. IPv4 addresses in IPv6 notation become IPv4 addresses."""
    try:
        found = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
