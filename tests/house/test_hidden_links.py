"""Test that logs hide one-time links: the log of the program, and the access logs of both proxies."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from config.secrets_in_logs import without_secrets
from tests.architecture.sources import ROOT

SECRET = "s3cr3t-part"
SECRET_ADDRESSES = (
    f"/accounts/password/reset/key/{SECRET}/",
    f"/accounts/break-glass/{SECRET}/",
    f"/accounts/oidc/example/login/callback/?code={SECRET}&state=1",
    f"/.gpupool/enter?code={SECRET}",
    f"/calendar/feed/{SECRET}.ics",
)


def caddy_log_text(uri: str) -> str:
    """Return the address as the access log of Caddy has it."""
    line = re.search(r'request>uri regexp "(.+)" "(.+)"', (ROOT / "deploy" / "Caddyfile").read_text())
    assert line is not None
    return re.sub(line[1], line[2].replace("${1}", r"\1"), uri)


def nginx_log_text(uri: str) -> str:
    """Return the address as the access log of nginx has it."""
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    line = re.search(r'"~(.+)" "\$\{(\w+)\}(\w+)";', text)
    assert line is not None
    found = re.search(line[1].replace("(?<", "(?P<"), uri)
    return f"{found[line[2]]}{line[3]}" if found else uri


@pytest.mark.parametrize("log_text", [without_secrets, caddy_log_text, nginx_log_text])
@pytest.mark.parametrize("uri", SECRET_ADDRESSES)
def test_a_log_hides_the_secret_part_of_an_address(log_text: Callable[[str], str], uri: str) -> None:
    shown = log_text(uri)
    assert SECRET not in shown
    assert shown.startswith(re.split(rf"\?|{SECRET}", uri)[0])


@pytest.mark.parametrize("log_text", [without_secrets, caddy_log_text, nginx_log_text])
def test_a_log_shows_other_addresses(log_text: Callable[[str], str]) -> None:
    assert log_text("/workloads/?page=2") == "/workloads/?page=2"
