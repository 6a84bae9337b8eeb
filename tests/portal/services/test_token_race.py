"""Test that a token which is revoked leaves no token that it creates at the same time."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, transaction

from portal.models import ApiToken
from portal.services.people import api_tokens
from tests.waiting import wait_until
from tests.world import MONDAY, build_world

pytestmark = pytest.mark.django_db(transaction=True)


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        return bool(cursor.fetchone()[0])


def test_a_token_that_is_created_while_its_parent_is_revoked_is_revoked_too() -> None:
    world = build_world(MONDAY)
    member, now = world.vision.member, world.now
    parent, _ = api_tokens.create_token(actor=member, name="parent", now=now)

    def revoke() -> None:
        try:
            api_tokens.revoke_token(actor=member, token=parent, now=now)
        finally:
            connection.close()

    revoking = threading.Thread(target=revoke)
    with transaction.atomic():
        child, _ = api_tokens.create_token(actor=member, name="child", parent=parent, now=now)
        revoking.start()
        wait_until(waits_for_a_lock)
    revoking.join()
    assert not ApiToken.objects.filter(revoked_at=None).exists()
    child.refresh_from_db()
    assert child.revoked_at == now
