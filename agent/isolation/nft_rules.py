"""Builds the nftables rules for the network of workloads."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from agent.isolation.listening_sockets import ANY_4, ANY_6, ListeningSocket
from agent.isolation.team_users import UidRange

# Where clouds tell a machine its secrets. 169.254.169.254: AWS, Google, Azure, OpenStack, Oracle; 169.254.170.2 and .23: AWS tasks;
# 168.63.129.16: Azure; 100.100.100.200: Alibaba; fd00:ec2::254: AWS; fd20:ce::254: Google. Each from that cloud's documentation.
METADATA_NETWORKS = ("169.254.0.0/16", "168.63.129.16", "100.100.100.200")


METADATA_ADDRESSES_IPV6 = ("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fe80::a9fe:a9fe")


# Not of the internet: RFC 1918, RFC 6598 (providers' own), RFC 3927 (one link), RFC 5771 (multicast), RFC 1112 (reserved).
PRIVATE_NETWORKS = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "240.0.0.0/4",
)


WORKLOAD_NETWORK_PREFIX = "10.213"  # of the pairs of interfaces, /30 each


def internet_rules(key: str, name_servers: Sequence[str], reach: Sequence[str], *, alone: bool) -> str:
    """``alone``: nothing else of the host is forwarded."""
    ours, anybodys = f'"gpn{key}*"', '"gpn*"'
    names = [each for each in name_servers if ":" not in each]
    ask = (
        f"iifname {ours} ip daddr {{ {', '.join(names)} }} meta l4proto {{ tcp, udp }} th dport 53 accept"
        if names
        else ""
    )
    apart = [
        str(each) for each in ipaddress.collapse_addresses(map(ipaddress.IPv4Network, reach))
    ]  # nft takes no overlaps
    named = f"iifname {ours} ip daddr {{ {', '.join(apart)} }} accept" if apart else ""
    rest = f"meta nfproto ipv4 iifname != {anybodys} oifname != {anybodys} drop" if alone else ""
    return f"""
  chain input {{ type filter hook input priority -10; iifname {ours} drop; }}
  chain forward {{ type filter hook forward priority -10;
    iifname {ours} meta nfproto ipv6 drop
    iifname {ours} ip daddr {{ {", ".join(METADATA_NETWORKS)}, 127.0.0.0/8, {WORKLOAD_NETWORK_PREFIX}.0.0/16 }} reject
    {ask}
    {named}
    iifname {ours} ip daddr {{ {", ".join(PRIVATE_NETWORKS)} }} reject
    oifname {ours} ct state established,related accept
    oifname {ours} drop
    {rest}
  }}
  chain nat {{ type nat hook postrouting priority 100; ip saddr {WORKLOAD_NETWORK_PREFIX}.0.0/16 oifname != {ours} masquerade; }}"""


def host_rules(numbers: UidRange) -> str:
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
    address = closed[2]
    return f"closed_{'any_' if address in (ANY_4, ANY_6) else ''}{6 if ':' in address else 4}"


def nft_element(closed: ListeningSocket) -> str:
    user, kind, address, port = closed
    place = "" if address in (ANY_4, ANY_6) else f" . {address}"
    return f"{user} . {kind}{place} . {port}"
