"""Test that an upgrade keeps the rights of existing tokens and gives each of them an end."""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from portal.models import ApiToken
from portal.services.people import api_tokens
from tests.world import World

migration: Any = importlib.import_module("portal.migrations.0019_every_token_ends")
pytestmark = pytest.mark.django_db


def test_existing_tokens_keep_their_rights_and_end_at_most_90_days_after_the_upgrade(world: World) -> None:
    now, day = timezone.now(), timedelta(days=1)
    ends = {"endless": None, "long": now + 300 * day, "short": now + 10 * day, "revoked": now + 300 * day}
    for name in ends:
        api_tokens.create_token(actor=world.vision.member, name=name, now=now)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE NONE")  # a migration runs as the owner of the tables
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE portal_apitoken ALTER expires_at DROP NOT NULL")
        for name, end in ends.items():
            cursor.execute("UPDATE portal_apitoken SET expires_at = %s WHERE name = %s", [end, name])
        cursor.execute("UPDATE portal_apitoken SET revoked_at = now() WHERE name = 'revoked'")
        cursor.execute(migration.LIMIT_EXISTING_TOKENS)
    days = {row.name: round((row.expires_at - now) / day) for row in ApiToken.objects.all()}
    assert days == {"endless": 90, "long": 90, "short": 10, "revoked": 300}
    assert ApiToken.objects.get(name="endless").scopes == ["read", "submit", "manage", "finance"]
