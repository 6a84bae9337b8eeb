"""Test the address at which the portal publishes the contact for reports of vulnerabilities."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

ADDRESS = "/.well-known/security.txt"


@pytest.mark.django_db
def test_everybody_reads_the_contact_that_the_operator_has_set(settings: Any) -> None:
    settings.GPUPOOL_SECURITY_CONTACT = "mailto:security@example.org"
    answer = Client().get(ADDRESS)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    fields = dict(line.split(": ", 1) for line in answer.content.decode().splitlines())
    assert fields["Contact"] == "mailto:security@example.org"
    assert fields["Canonical"] == f"{settings.GPUPOOL_PORTAL_URL}{ADDRESS}"
    expires = datetime.fromisoformat(fields["Expires"])
    assert timezone.now() < expires < timezone.now() + timedelta(days=365)


@pytest.mark.django_db
def test_without_the_setting_there_is_no_such_address(settings: Any) -> None:
    settings.GPUPOOL_SECURITY_CONTACT = ""
    assert Client().get(ADDRESS).status_code == 404
