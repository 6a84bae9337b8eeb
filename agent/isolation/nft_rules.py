"""Builds the nftables rules for the network of workloads."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from agent.isolation.listening_sockets import ANY_4, ANY_6, ListeningSocket
from agent.isolation.team_users import UidRange

# Addresses of cloud metadata services, which return credentials. Source: the documentation of each cloud.
# 169.254.169.254: AWS, Google, Azure, OpenStack, Oracle; 169.254.170.2 and .23: AWS tasks; 168.63.129.16:
# Azure; 100.100.100.200: Alibaba; fd00:ec2::254: AWS; fd20:ce::254: Google.
METADATA_NETWORKS = ("169.254.0.0/16", "168.63.129.16", "100.100.100.200")


METADATA_ADDRESSES_IPV6 = ("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fe80::a9fe:a9fe")


# RFC 1918, RFC 6598 (shared address space), RFC 3927 (link-local), RFC 5771 (multicast), RFC 1112 (reserved).
PRIVATE_NETWORKS = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "240.0.0.0/4",
)


WORKLOAD_NETWORK_PREFIX = "10.213"  # each veth pair gets a /30 below it
WORKLOAD_NETWORK = f"{WORKLOAD_NETWORK_PREFIX}.0.0/16"


def internet_rules(key: str, name_servers: Sequence[str], reach: Sequence[str], *, alone: bool) -> str:
    """Return the rules for runs that may reach the internet.

    - ``key``: the agent's ``network_key``.
    - ``name_servers``: addresses of the name servers that runs may query.
    - ``reach``: private networks that runs may reach.
    - ``alone``: True if the host must forward only the traffic of runs.
    """
    own, every = f'"gpn{key}*"', '"gpn*"'
    resolvers = [address for address in name_servers if ":" not in address]
    dns_rule = (
        f"iifname {own} ip daddr {{ {', '.join(resolvers)} }} meta l4proto {{ tcp, udp }} th dport 53 accept"
        if resolvers
        else ""
    )
    networks = [
        str(address) for address in ipaddress.collapse_addresses(map(ipaddress.IPv4Network, reach))
    ]  # nft rejects overlapping networks
    reach_rule = f"iifname {own} ip daddr {{ {', '.join(networks)} }} accept" if networks else ""
    forward_rule = f"meta nfproto ipv4 iifname != {every} oifname != {every} drop" if alone else ""
    return f"""
  chain input {{ type filter hook input priority -10; iifname {own} drop; }}
  chain forward {{ type filter hook forward priority -10;
    iifname {own} meta nfproto ipv6 drop
    iifname {own} ip daddr {{ {", ".join(METADATA_NETWORKS)}, 127.0.0.0/8, {WORKLOAD_NETWORK} }} reject
    {dns_rule}
    {reach_rule}
    iifname {own} ip daddr {{ {", ".join(PRIVATE_NETWORKS)} }} reject
    oifname {own} ct state established,related accept
    oifname {own} drop
    {forward_rule}
  }}
  chain nat {{ type nat hook postrouting priority 100;
    ip saddr {WORKLOAD_NETWORK} oifname != {own} masquerade; }}"""


def host_rules(numbers: UidRange) -> str:
    """Return the rules for runs in the host's network. ``numbers``: the uids of team users.

    Team users can't reach the metadata addresses of clouds, or the closed ports in the nft sets.
    """
    users = f"{numbers.first}-{numbers.last}"
    return f"""
  set closed_4 {{ type uid . inet_proto . ipv4_addr . inet_service; }}
  set closed_6 {{ type uid . inet_proto . ipv6_addr . inet_service; }}
  set closed_any_4 {{ type uid . inet_proto . inet_service; }}
  set closed_any_6 {{ type uid . inet_proto . inet_service; }}
  chain output {{ type filter hook output priority -10;
    meta skuid {users} ip daddr {{ {", ".join(METADATA_NETWORKS)} }} reject
    meta skuid {users} ip6 daddr {{ {", ".join(METADATA_ADDRESSES_IPV6)} }} reject
    oifname "lo" meta skuid . meta l4proto . ip daddr . th dport @closed_4 reject
    oifname "lo" meta skuid . meta l4proto . ip6 daddr . th dport @closed_6 reject
    oifname "lo" meta nfproto ipv4 meta skuid . meta l4proto . th dport @closed_any_4 reject
    oifname "lo" meta nfproto ipv6 meta skuid . meta l4proto . th dport @closed_any_6 reject
  }}"""


def nft_set_name(closed: ListeningSocket) -> str:
    """Return the name of the nft set that contains this closed port."""
    address = closed[2]
    return f"closed_{'any_' if address in (ANY_4, ANY_6) else ''}{6 if ':' in address else 4}"


def nft_element(closed: ListeningSocket) -> str:
    """Return the closed port in the syntax of an element of its nft set."""
    user, kind, address, port = closed
    address_part = "" if address in (ANY_4, ANY_6) else f" . {address}"
    return f"{user} . {kind}{address_part} . {port}"
