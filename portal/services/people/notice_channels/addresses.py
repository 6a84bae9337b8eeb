"""Check the addresses of notice channels: mail addresses, webhooks, and URLs of chat services."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

import apprise
from django.conf import settings

from portal.input_checks import EMAIL_PATTERN, InputChecks, display_value
from portal.models import NoticeChannel
from portal.wording.problems import channel_problems

# Chat services by the scheme of their URLs, as apprise defines them (https://appriseit.com/services/). Other
# schemes of apprise run programs, write files or send to any address, so they are not allowed.
SERVICE_NAMES = {
    "discord": "Discord",
    "gchat": "Google Chat",
    "gotifys": "Gotify",
    "matrixs": "Matrix",
    "mmosts": "Mattermost",
    "msteams": "Microsoft Teams (connector)",
    "ntfys": "ntfy",
    "opsgenie": "Opsgenie",
    "pagerduty": "PagerDuty",
    "rockets": "Rocket.Chat",
    "slack": "Slack",
    "tgram": "Telegram",
    "workflows": "Microsoft Teams (workflow)",
    "wxteams": "Webex",
    "zulip": "Zulip",
}
# Services whose URL names the server. These servers must have a public or an allowed address.
SELF_HOSTED = frozenset({"gotifys", "matrixs", "mmosts", "ntfys", "rockets", "workflows", "zulip"})
CONNECT_SECONDS, READ_SECONDS = 5.0, 10.0
DOCUMENTATION = "https://appriseit.com/services/"
MAX_ADDRESS = 1000
HTTPS_PORT = 443


class AddressRefused(Exception):
    """Raised if a host has no address, or an address that notices may not be sent to."""


def checked_address(checks: InputChecks, kind: str, given: str, account_address: str | None) -> str:
    """Return the address of a channel. ``account_address`` is the mail address of its person; None: a team.

    Problems are added to ``checks`` under the field ``address``.
    """
    address = checks.text("address", given, least=0, most=MAX_ADDRESS)
    if "address" in checks.problems:
        return ""
    if kind == NoticeChannel.Kind.MAIL:
        return _checked_mail(checks, address, account_address)
    problem = _webhook_problem(address) if kind == NoticeChannel.Kind.WEBHOOK else _service_problem(address)
    if problem:
        checks.note("address", None, problem)  # the address can contain a secret
    return address


def _checked_mail(checks: InputChecks, address: str, account_address: str | None) -> str:
    """Return the mail address. Mail to a person goes to the address of the account, so to nobody else."""
    if account_address is None:
        if not EMAIL_PATTERN.fullmatch(address):
            message = channel_problems.ADDRESS_NOT_MAIL.format(given=display_value(address))
            checks.note("address", address, message)
        return address
    if not account_address:
        checks.note("address", address, channel_problems.NO_MAIL_ADDRESS)
    elif address and address != account_address:
        given = display_value(address)
        message = channel_problems.ONLY_OWN_ADDRESS.format(given=given, allowed=account_address)
        checks.note("address", address, message)
    return ""


def _webhook_problem(address: str) -> str:
    parts = _split(address)
    schemes = ("https", "http") if settings.GPUPOOL_NOTICE_NETWORKS else ("https",)
    if parts is None or parts[0] not in schemes or not parts[1]:
        allowed = " or ".join(f"{scheme}://" for scheme in schemes)
        return channel_problems.ADDRESS_NOT_URL.format(given=_scheme_of(address), allowed=allowed)
    return host_problem(parts[1], parts[2] or HTTPS_PORT)


def _service_problem(address: str) -> str:
    parts = _split(address)
    if parts is None or parts[0] not in SERVICE_NAMES:
        allowed = ", ".join(f"{scheme}://" for scheme in sorted(SERVICE_NAMES))
        return channel_problems.SERVICE_UNKNOWN.format(allowed=allowed)
    scheme, host, port = parts
    if chat_service(address) is None:
        return channel_problems.SERVICE_INCOMPLETE.format(
            service=SERVICE_NAMES[scheme], documentation=DOCUMENTATION
        )
    return service_host_problem(scheme, host, port)


def service_host_problem(scheme: str, host: str, port: int | None) -> str:
    """Return why notices may not be sent to the server of a chat service; "" if they may."""
    if scheme not in SELF_HOSTED or (scheme == "zulip" and "." not in host):
        return ""  # a name without a dot is an organisation at zulipchat.com
    return host_problem(host, port or HTTPS_PORT)


def chat_service(address: str) -> Any:
    """Return the service that apprise makes of an address; None if the address is not complete.

    Whatever the address says, the service follows no redirect and no other server name, because these could
    lead to a private network. It also checks certificates, and gives up after seconds.
    """
    service = apprise.Apprise.instantiate(address, suppress_exceptions=True)
    if service is not None:
        service.redirects, service.verify_certificate, service.retry = False, True, 0
        service.socket_connect_timeout, service.socket_read_timeout = CONNECT_SECONDS, READ_SECONDS
        service.discovery = False  # of Matrix
    return service


def host_problem(host: str, port: int) -> str:
    """Return why notices may not be sent to a host; "" if they may. The DNS is asked."""
    try:
        allowed_addresses(host, port)
    except AddressRefused as refused:
        return str(refused)
    return ""


def allowed_addresses(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host. Raises AddressRefused if one of them is not allowed.

    Private, loopback, link-local and other addresses that are not public are allowed only if a network in
    GPUPOOL_NOTICE_NETWORKS contains them. Otherwise a channel could reach services inside the organisation.
    """
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise AddressRefused(channel_problems.HOST_NOT_FOUND.format(host=host)) from None
    found = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    for text in found:
        address = ipaddress.ip_address(text.partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        effective = mapped or address
        if any(effective in network for network in settings.GPUPOOL_NOTICE_NETWORKS):
            continue
        if not effective.is_global or effective.is_multicast:
            raise AddressRefused(channel_problems.HOST_NOT_PUBLIC.format(host=host, found=text))
    return found


def shown_address(kind: str, address: str) -> str:
    """Return the address without its secret parts: only the host, or only the name of a service."""
    if kind == NoticeChannel.Kind.MAIL:
        return address
    parts = _split(address)
    if parts is None:
        return ""
    scheme, host, _ = parts
    if kind == NoticeChannel.Kind.WEBHOOK:
        return f"{scheme}://{host}/…"[:200]
    return f"{SERVICE_NAMES[scheme]}{f' on {host}' if scheme in SELF_HOSTED else ''}"[:200]


def _split(address: str) -> tuple[str, str, int | None] | None:
    """Return scheme, host and port of a URL; None if it is not a URL."""
    try:
        parts = urlsplit(address)
        return parts.scheme.lower(), parts.hostname or "", parts.port
    except ValueError:
        return None


def _scheme_of(address: str) -> str:
    return display_value(f"{address.partition('://')[0]}://…" if "://" in address else "a text without ://")
